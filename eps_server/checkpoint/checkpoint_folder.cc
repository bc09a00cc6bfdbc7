#include "eps_server/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/checkpoint_tensors.h"
#include "common/checkpoint/frozen_file.h"
#include "common/formats/safetensors.h"
#include "common/model/hf_config.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp8_block.h"
#include "common/numeric/quantized.h"
#include "common/spec/moment_format.h"
#include "common/tensor/dtype.h"
#include "eps_server/checkpoint/load_on_threads.h"

namespace eps::server {
namespace {

std::string PathOf(const std::string& folder, absl::string_view file) { return absl::StrCat(folder, "/", file); }

// ---- Writing ----------------------------------------------------------------------------------------------

// Let go to the disk at a time: enough to keep it busy, and too little for the system to slow down others who write.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

// The files of a checkpoint that hold tensors, while they are written.
class TensorFiles {
 public:
  // `with_frozen`: false where the file of the frozen tensors is there already.
  // Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<TensorFiles>> Create(const std::string& folder, const ModelSpec& model,
                                                             const RunConfig& run, absl::Span<const WeightFile> weights,
                                                             bool with_frozen, PatientThread& patient) {
    // What every writer of PyTorch tensors says, and some readers ask for.
    const std::map<std::string, std::string> metadata = {{"format", "pt"}};
    std::vector<size_t> first_tensors(model.blobs.size());
    std::unique_ptr<SafetensorsWriter> masters, frozen;
    for (const WeightFile& file : weights) {
      size_t next = 0;
      for (const BlobSpec* blob : file.blobs) {
        first_tensors[static_cast<size_t>(blob->id.value())] = next;
        next += blob->tensors.size();
      }
      const bool is_frozen = file.name == kFrozenFile;
      if (is_frozen && !with_frozen) continue;
      std::unique_ptr<SafetensorsWriter>& writer = is_frozen ? frozen : masters;
      EPS_ASSIGN_OR_RETURN(writer, SafetensorsWriter::Create(PathOf(folder, file.name), file.entries, metadata));
    }
    EPS_ASSIGN_OR_RETURN(
        auto moments, SafetensorsWriter::Create(PathOf(folder, kOptimizerFile), MomentEntries(model, run), metadata));
    return std::unique_ptr<TensorFiles>(new TensorFiles(model, run, std::move(first_tensors), std::move(masters),
                                                        std::move(frozen), std::move(moments), patient));
  }

  absl::Status WriteChunk(const CapturedChunk& chunk) {
    if (chunk.wire != nullptr) {
      if (frozen_ == nullptr) return absl::OkStatus();
      EPS_RETURN_IF_ERROR(patient_.Run([&] { return WriteFrozen(chunk); }));
      unsynced_bytes_ += chunk.num_elems * SizeOf(model_.blob(chunk.blob).value_dtype(wire_));
    } else {
      for (int which = -1; which < num_moments_; ++which) {
        EPS_RETURN_IF_ERROR(patient_.Run([&] { return WriteArray(chunk, which); }));
      }
      unsynced_bytes_ += chunk.num_elems * (kMasterBytes + num_moments_ * moment_bytes_);
    }
    if (unsynced_bytes_ < kWriteBackBytes) return absl::OkStatus();
    unsynced_bytes_ = 0;
    // Where an update waits, the system's memory takes what it can, as fast as it can.
    const bool wait = !patient_.is_awaited();
    return patient_.Run([&]() -> absl::Status {
      for (SafetensorsWriter* file : files()) EPS_RETURN_IF_ERROR(file->StartWriteBack(wait));
      return absl::OkStatus();
    });
  }

  absl::Status Finish() {
    for (SafetensorsWriter* file : files()) EPS_RETURN_IF_ERROR(patient_.Run([&] { return file->Finish(); }));
    return absl::OkStatus();
  }

 private:
  TensorFiles(const ModelSpec& model, const RunConfig& run, std::vector<size_t> first_tensors,
              std::unique_ptr<SafetensorsWriter> masters, std::unique_ptr<SafetensorsWriter> frozen,
              std::unique_ptr<SafetensorsWriter> moments, PatientThread& patient)
      : model_(model),
        wire_(run.precision.wire),
        num_moments_(run.optimizer.num_moments()),
        moment_format_(run.precision.moments),
        moment_bytes_(SizeOf(MomentFileDtype(moment_format_))),
        first_tensors_(std::move(first_tensors)),
        masters_(std::move(masters)),
        frozen_(std::move(frozen)),
        moments_(std::move(moments)),
        patient_(patient) {}

  std::vector<SafetensorsWriter*> files() const {
    std::vector<SafetensorsWriter*> files = {masters_.get(), moments_.get()};
    if (frozen_ != nullptr) files.push_back(frozen_.get());
    return files;
  }

  // Calls `write(which tensor of the blob, first element in the tensor, first element in the chunk, number of
  // elements)` for each tensor of which the chunk has some. The padding between tensors is in no file.
  template <typename WritePiece>
  absl::Status ForEachTensorOf(const CapturedChunk& chunk, const WritePiece& write) const {
    const std::vector<TensorSpec>& tensors = model_.blob(chunk.blob).tensors;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const int64_t begin = std::max(tensors[t].offset_elems, chunk.first_elem);
      const int64_t end =
          std::min(tensors[t].offset_elems + tensors[t].num_elems(), chunk.first_elem + chunk.num_elems);
      if (begin >= end) continue;
      EPS_RETURN_IF_ERROR(write(t, begin - tensors[t].offset_elems, begin - chunk.first_elem, end - begin));
    }
    return absl::OkStatus();
  }

  // A moment, as the file has it: (num_elems) in MomentFileDtype.
  const std::byte* MomentOf(const CapturedChunk& chunk, int which) {
    const std::byte* const moment =
        chunk.state + chunk.num_elems * kMasterBytes + which * MomentBytes(moment_format_, chunk.num_elems);
    if (moment_format_ != MomentFormat::kFp8) return moment;
    decoded_.resize(static_cast<size_t>(chunk.num_elems));
    DecodeFp8(KindOfMoment(which), moment, 0, absl::MakeSpan(decoded_));
    return reinterpret_cast<const std::byte*>(decoded_.data());
  }

  // which: -1 the masters, else a moment
  absl::Status WriteArray(const CapturedChunk& chunk, int which) {
    const std::byte* const array = which < 0 ? chunk.state : MomentOf(chunk, which);
    const int64_t elem_bytes = which < 0 ? kMasterBytes : moment_bytes_;
    const auto blob = static_cast<size_t>(chunk.blob.value());
    return ForEachTensorOf(chunk, [&](size_t tensor, int64_t first_elem, int64_t chunk_elem, int64_t num_elems) {
      const int64_t offset_bytes = first_elem * elem_bytes;
      // Safetensors are little endian, and so is every machine that this runs on.
      const absl::Span<const std::byte> bytes(array + chunk_elem * elem_bytes,
                                              static_cast<size_t>(num_elems * elem_bytes));
      if (which < 0) return masters_->Write(first_tensors_[blob] + tensor, offset_bytes, bytes);
      const size_t entry = (first_tensors_[blob] + tensor) * static_cast<size_t>(num_moments_);
      return moments_->Write(entry + static_cast<size_t>(which), offset_bytes, bytes);
    });
  }

  // A chunk of frozen tensors, as the file has it: (num_elems) in the blob's value_dtype.
  const std::byte* FrozenOf(const CapturedChunk& chunk) {
    const std::optional<QuantizedFormat> format = model_.blob(chunk.blob).quantized;
    if (!format.has_value()) return chunk.wire;
    decoded_.resize(static_cast<size_t>(chunk.num_elems));
    std::array<float, kQuantizedBlockElems> block;
    for (int64_t first = 0; first < chunk.num_elems; first += kQuantizedBlockElems) {
      DecodeQuantized(*format, chunk.wire, first, chunk.num_elems, absl::MakeSpan(block));
      std::transform(block.begin(), block.end(), decoded_.begin() + first, ToBf16);
    }
    return reinterpret_cast<const std::byte*>(decoded_.data());
  }

  absl::Status WriteFrozen(const CapturedChunk& chunk) {
    const int64_t elem_bytes = SizeOf(model_.blob(chunk.blob).value_dtype(wire_));
    const std::byte* const values = FrozenOf(chunk);
    return ForEachTensorOf(chunk, [&](size_t tensor, int64_t first_elem, int64_t chunk_elem, int64_t num_elems) {
      return frozen_->Write(first_tensors_[static_cast<size_t>(chunk.blob.value())] + tensor, first_elem * elem_bytes,
                            {values + chunk_elem * elem_bytes, static_cast<size_t>(num_elems * elem_bytes)});
    });
  }

  static constexpr int64_t kMasterBytes = sizeof(float);
  const ModelSpec& model_;
  const Dtype wire_;
  const int num_moments_;
  const MomentFormat moment_format_;
  const int64_t moment_bytes_;                        // of an element, in the file
  const std::vector<size_t> first_tensors_;           // by blob: the index of its first tensor in its file of weights
  const std::unique_ptr<SafetensorsWriter> masters_;  // of what trains
  const std::unique_ptr<SafetensorsWriter> frozen_;   // null: none is frozen, or their file is there
  const std::unique_ptr<SafetensorsWriter> moments_;
  PatientThread& patient_;
  std::vector<Bf16> decoded_;  // a chunk's moment, or what is frozen of it, while it is written
  int64_t unsynced_bytes_ = 0;
};

absl::Status WriteTensors(TensorFiles& files, StateCapture& capture) {
  EPS_RETURN_IF_ERROR(capture.Fill());
  while (capture.front() != nullptr) {
    EPS_RETURN_IF_ERROR(files.WriteChunk(*capture.front()));
    capture.Pop();
    EPS_RETURN_IF_ERROR(capture.Fill());
  }
  return files.Finish();
}

// Nothing where the file is still to be written.
absl::StatusOr<std::optional<SummedFrozenFile>> LinkFrozen(const std::string& folder,
                                                           const std::optional<SummedFrozenFile>& before) {
  if (!before.has_value()) return std::optional<SummedFrozenFile>();
  EPS_ASSIGN_OR_RETURN(const FrozenFile::LinkResult result, before->file.LinkInto(folder));
  if (result.is_linked) return std::optional(SummedFrozenFile{before->file.In(folder), before->sum});
  LogWarning("frozen_tensors_written_anew", {{"why", result.why_not}});
  return std::optional<SummedFrozenFile>();
}

absl::StatusOr<FileSum> SumPatiently(const std::string& path, PatientThread& patient) {
  EPS_ASSIGN_OR_RETURN(FileSummer summer, FileSummer::Open(path));
  bool more = true;
  while (more) {
    EPS_RETURN_IF_ERROR(patient.Run([&]() -> absl::Status {
      EPS_ASSIGN_OR_RETURN(more, summer.SumPart());
      return absl::OkStatus();
    }));
  }
  return summer.Finish();
}

// Of the file of frozen tensors: that which a linked one has; of one that was written `own` becomes it, or stays
// nothing where no later checkpoint could link it.
absl::StatusOr<FileSum> SumFrozen(const std::string& folder, std::optional<SummedFrozenFile>& own,
                                  PatientThread& patient) {
  if (own.has_value()) return own->sum;
  const absl::StatusOr<FrozenFile> written = FrozenFile::Of(folder);
  EPS_ASSIGN_OR_RETURN(FileSum sum, SumPatiently(PathOf(folder, kFrozenFile), patient));
  if (written.ok()) {
    own = SummedFrozenFile{*written, sum};
  } else {
    LogWarning("frozen_tensors_not_shared", {{"why", written.status().message()}});
  }
  return sum;
}

absl::Status WriteManifest(const std::string& folder, const Manifest& manifest) {
  const std::string text = ManifestToJson(manifest);
  // A checkpoint that no reader takes is worse than none: it would push good ones out.
  if (const absl::Status status = ParseManifest(text).status(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(folder, kManifestFile), ": ", status.message()));
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kManifestFile), text));
  return CheckComplete(folder);
}

// ---- Reading ----------------------------------------------------------------------------------------------

// A file that holds exactly `wanted`.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenTensors(const std::string& path,
                                                               const std::vector<SafetensorsEntry>& wanted) {
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> file = SafetensorsReader::Open(path);
  if (!file.ok()) return absl::DataLossError(file.status().message());
  for (const SafetensorsEntry& tensor : wanted) {
    const SafetensorsEntry* found = (*file)->Find(tensor.name);
    if (found == nullptr) return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, " is missing"));
    if (found->dtype != tensor.dtype || found->shape != tensor.shape) {
      return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, ": found ", found->dtype, " ",
                                              ShapeText(found->shape), ", must be ", tensor.dtype, " ",
                                              ShapeText(tensor.shape)));
    }
  }
  if ((*file)->entries().size() != wanted.size()) {
    return absl::DataLossError(
        absl::StrCat(path, ": found ", (*file)->entries().size(), " tensors, must be ", wanted.size()));
  }
  return file;
}

// Where a store has a tensor.
struct Place {
  BlobId blob;
  const TensorSpec* tensor;
};

std::map<std::string, Place> PlacesByName(const ModelSpec& model) {
  std::map<std::string, Place> places;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) places.emplace(tensor.name, Place{blob.id, &tensor});
  }
  return places;
}

// What is read and stored at once.
struct Piece {
  const SafetensorsReader* file;
  const SafetensorsEntry* stored;  // the file's
  BlobId blob;
  int moment;                     // -1: masters
  int64_t first_elem, num_elems;  // of the tensor
  int64_t blob_elem;              // where the blob has the first
  int64_t num_bytes;              // of the file
};

// Adds a tensor of `file`.
void AddPieces(const SafetensorsReader& file, const std::string& name, const Place& place, int moment,
               std::vector<Piece>& pieces) {
  const SafetensorsEntry& stored = *file.Find(name);
  const TensorSpec& tensor = *place.tensor;
  const int64_t elem_bytes = stored.num_bytes / tensor.num_elems();
  for (int64_t first = 0; first < tensor.num_elems(); first += kChunkElems) {
    const int64_t num_elems = std::min(kChunkElems, tensor.num_elems() - first);
    pieces.push_back({.file = &file,
                      .stored = &stored,
                      .blob = place.blob,
                      .moment = moment,
                      .first_elem = first,
                      .num_elems = num_elems,
                      .blob_elem = tensor.offset_elems + first,
                      .num_bytes = num_elems * elem_bytes});
  }
}

}  // namespace

absl::StatusOr<std::optional<SummedFrozenFile>> WriteCheckpointFolder(const std::string& folder, StateCapture& capture,
                                                                      const ModelSpec& model, const RunConfig& run,
                                                                      const RunState& state,
                                                                      const std::optional<SummedFrozenFile>& before,
                                                                      PatientThread& patient) {
  EPS_CHECK(capture.num_moments() == run.optimizer.num_moments() && capture.moment_format() == run.precision.moments);
  const WeightLayout layout = LayoutOf(model);
  const std::vector<WeightFile> weights = WeightFiles(model, run.precision.wire, layout);
  EPS_ASSIGN_OR_RETURN(std::optional<SummedFrozenFile> own, LinkFrozen(folder, before));
  {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFiles> files,
                         TensorFiles::Create(folder, model, run, weights, /*with_frozen=*/!own.has_value(), patient));
    EPS_RETURN_IF_ERROR(WriteTensors(*files, capture));
  }
  if (layout == WeightLayout::kFrozenApart) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kIndexFile), WeightIndex(weights)));
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(folder, kConfigFile), ModelConfigToJson(model.config)));
  Manifest manifest{.run = run, .state = state, .files = {}};
  for (const absl::string_view name : SummedFiles(layout)) {
    FileSum& sum = manifest.files[std::string(name)];
    if (name == kFrozenFile) {
      EPS_ASSIGN_OR_RETURN(sum, SumFrozen(folder, own, patient));
    } else {
      EPS_ASSIGN_OR_RETURN(sum, SumPatiently(PathOf(folder, name), patient));
    }
  }
  EPS_RETURN_IF_ERROR(WriteManifest(folder, manifest));  // not patiently: it allocates much, and is short
  return own;
}

absl::StatusOr<Manifest> ReadManifestOfWholeWeights(const std::string& folder, LongWork* work) {
  EPS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  EPS_RETURN_IF_ERROR(CheckSizes(folder, manifest));
  EPS_RETURN_IF_ERROR(CheckSums(folder, manifest, CheckedFiles::kWeights, work));
  return manifest;
}

absl::Status LoadTensors(const std::string& folder, const ModelSpec& model, const Manifest& manifest, LoadWhat what,
                         int threads, Store& store, LongWork* work) {
  const int num_moments = manifest.run.optimizer.num_moments();
  ModelConfig config = model.config;
  config.freeze = manifest.run.model.freeze;
  config.frozen_format = manifest.run.model.frozen_format;
  EPS_ASSIGN_OR_RETURN(const ModelSpec written, BuildModel(config));
  const std::map<std::string, Place> places = PlacesByName(model);
  std::vector<std::unique_ptr<SafetensorsReader>> files;
  std::vector<Piece> pieces;  // as they lie in the files
  for (const WeightFile& file : WeightFiles(written, manifest.run.precision.wire, LayoutOf(manifest))) {
    EPS_ASSIGN_OR_RETURN(auto masters, OpenTensors(PathOf(folder, file.name), file.entries));
    for (const SafetensorsEntry& entry : file.entries) {
      AddPieces(*masters, entry.name, places.at(entry.name), -1, pieces);
    }
    files.push_back(std::move(masters));
  }
  if (what == LoadWhat::kMastersAndMoments) {
    EPS_CHECK(store.num_moments() == num_moments && store.moment_format() == manifest.run.precision.moments);
    const std::vector<SafetensorsEntry> entries = MomentEntries(model, manifest.run);
    EPS_ASSIGN_OR_RETURN(auto moments, OpenTensors(PathOf(folder, kOptimizerFile), entries));
    auto entry = entries.begin();
    for (const BlobSpec* blob : TrainedBlobs(model)) {
      for (const TensorSpec& tensor : blob->tensors) {
        for (int i = 0; i < num_moments; ++i) AddPieces(*moments, entry++->name, {blob->id, &tensor}, i, pieces);
      }
    }
    files.push_back(std::move(moments));
  }
  int64_t num_bytes = 0;
  for (const Piece& piece : pieces) num_bytes += piece.num_bytes;
  if (work != nullptr) work->Begin("reading the checkpoint", num_bytes);
  return LoadOnThreads(pieces.size(), threads, [&](size_t i, absl::Span<float> buffer) -> absl::Status {
    const Piece& piece = pieces[i];
    const auto values = buffer.subspan(0, static_cast<size_t>(piece.num_elems));
    EPS_RETURN_IF_ERROR(piece.file->ReadFloatsAt(*piece.stored, piece.first_elem, values));
    EPS_RETURN_IF_ERROR(piece.moment < 0 ? store.LoadMaster(piece.blob, manifest.state.version, piece.blob_elem, values)
                                         : store.LoadMoment(piece.blob, piece.moment, piece.blob_elem, values));
    return AddTo(work, piece.num_bytes);
  });
}

}  // namespace eps::server
