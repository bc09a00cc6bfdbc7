#include "eps_server/checkpoint/checkpointer.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/long_work.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/frozen_file.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/resumed_run.h"
#include "common/checkpoint/update_counts.h"
#include "eps_server/checkpoint/capture_buffer.h"
#include "eps_server/checkpoint/capture_size.h"
#include "eps_server/checkpoint/checkpoint_folder.h"
#include "eps_server/checkpoint/patient_thread.h"
#include "eps_server/checkpoint/state_capture.h"

namespace eps::server {
namespace {

// Of a core, before writing gives way: a small checkpoint is on disk at once, and no step is longer by more.
constexpr absl::Duration kPromptWriting = absl::Milliseconds(100);

class FolderCheckpointer final : public Checkpointer {
 public:
  FolderCheckpointer(std::string directory, const ModelSpec& model, const RunConfig& run,
                     std::function<absl::Status()> claim, std::unique_ptr<CaptureBuffer> buffer)
      : directory_(std::move(directory)),
        model_(model),
        run_(run),
        claim_(std::move(claim)),
        buffer_(std::move(buffer)) {}

  absl::Status Start() {
    EPS_RETURN_IF_ERROR(directory_.CleanUp());
    EPS_ASSIGN_OR_RETURN(const std::vector<Version> steps, directory_.Steps());
    if (steps.empty()) return absl::OkStatus();
    // A damaged one is LoadLatest's to report; a run that does not resume may go on without.
    if (const absl::StatusOr<Version> newest = FindNewestCheckpoint(directory_); newest.ok())
      SetLatestPath(directory_.FolderOf(*newest));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Write(const Store& store, const RunState& state, const Capture& capture) override {
    buffer_->Clear();  // of what a write that failed left
    return WriteCopied(store, state, capture);
  }

  absl::StatusOr<RunState> LoadLatest(Store& store, int threads, LongWork* work) override {
    EPS_ASSIGN_OR_RETURN(const Version version, FindNewestCheckpoint(directory_));
    const std::string folder = directory_.FolderOf(version);
    std::optional<SummedFrozenFile> frozen;
    absl::StatusOr<Manifest> manifest = CheckForResume(version, folder, frozen, work);
    absl::Status status = manifest.status();
    if (status.ok())
      status = LoadTensors(folder, model_, *manifest, LoadWhat::kMastersAndMoments, threads, store, work);
    EPS_RETURN_IF_ERROR(store.disk_status());  // the checkpoint is as it was
    // Of another run or format nothing is damaged. All else, a disk that cannot be read too, is.
    if (!status.ok() && !absl::IsFailedPrecondition(status) && !absl::IsCancelled(status)) {
      return absl::DataLossError(absl::StrCat(status.message(), "; ", WhatToDo(version, status)));
    }
    EPS_RETURN_IF_ERROR(status);
    frozen_ = std::move(frozen);
    SetLatestPath(folder);
    return std::move(manifest->state);
  }

  std::string LatestPath() const override {
    MutexLock lock(mu_);
    return latest_path_;
  }

 private:
  absl::StatusOr<std::string> WriteCopied(const Store& store, const RunState& state, const Capture& capture) {
    EPS_ASSIGN_OR_RETURN(StateCapture copied,
                         StateCapture::Create(store, model_, state.version, capture.order, capture.captured, *buffer_));
    // Before the checkpoints' disk, which may hang, could hold an update up.
    EPS_RETURN_IF_ERROR_WITH(copied.Fill(), absl::StrCat("checkpoint of step ", state.version.value()));
    PatientThread patient(
        {.is_awaited = capture.is_awaited, .is_cancelled = capture.is_cancelled, .allowance = kPromptWriting});
    if (claim_ != nullptr) EPS_RETURN_IF_ERROR(claim_());
    EPS_ASSIGN_OR_RETURN(const std::string aside, directory_.StartWriting(state.version));
    const auto frozen = WriteCheckpointFolder(aside, copied, model_, run_, state, frozen_, patient);
    absl::Status status = frozen.status();
    if (status.ok()) status = directory_.FinishWriting(state.version);
    if (!status.ok()) {
      directory_.AbandonWriting(state.version);
      return Annotate(status, absl::StrCat("checkpoint of step ", state.version.value()));
    }
    std::string path = directory_.FolderOf(state.version);
    SetLatestPath(path);
    frozen_ = *frozen;
    if (frozen_.has_value()) frozen_->file = frozen_->file.In(path);
    const absl::Status removed = patient.Run([this, too_many = TooMany(state)] {
      for (const Version version : too_many) {
        const absl::Status status = directory_.Remove(version);
        if (!status.ok()) LogNotRemoved(directory_.FolderOf(version), status);
      }
      return absl::OkStatus();
    });
    removed.IgnoreError();  // cancelled: the next one sees to it
    return path;
  }

  // Nothing where none is frozen, or the file is none that others may link: the next checkpoint has its own.
  static std::optional<SummedFrozenFile> FrozenFileOf(const std::string& folder, const Manifest& manifest) {
    if (!manifest.has_frozen_file()) return std::nullopt;
    absl::StatusOr<FrozenFile> file = FrozenFile::Of(folder);
    if (file.ok()) return SummedFrozenFile{*std::move(file), manifest.files.at(kFrozenFile)};
    LogWarning("frozen_tensors_not_shared", {{"why", file.status().message()}});
    return std::nullopt;
  }

  // Everything but the tensors' names, before anything is stored. `frozen` becomes the folder's.
  absl::StatusOr<Manifest> CheckForResume(Version version, const std::string& folder,
                                          std::optional<SummedFrozenFile>& frozen, LongWork* work) const {
    EPS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
    const std::vector<std::string> differences = DifferencesThatMatter(manifest, run_);
    if (!differences.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, " is of another run: ", absl::StrJoin(differences, "; "),
                       "; resume with that run, or start this one in another folder; eps branch goes on from a "
                       "checkpoint with another schedule, more steps or other clipping"));
    }
    if (manifest.state.version != version) {
      return absl::DataLossError(absl::StrCat(folder, "/", kManifestFile, ": step: found ",
                                              manifest.state.version.value(), ", must be ", version.value(),
                                              " as the folder's name says"));
    }
    EPS_RETURN_IF_ERROR_WITH(UpdatesOfBlobs(manifest.state, model_).status(), absl::StrCat(folder, "/", kManifestFile));
    EPS_RETURN_IF_ERROR(CheckSizes(folder, manifest));
    frozen = FrozenFileOf(folder, manifest);  // before it is read: a change from here on is seen
    EPS_RETURN_IF_ERROR(CheckSums(folder, manifest, CheckedFiles::kAll, work));
    return manifest;
  }

  // Reads what it offers whole: advice that leads to a second damaged checkpoint is none. A damaged file that several
  // checkpoints share is read once.
  std::string WhatToDo(Version damaged, const absl::Status& damage) const {
    std::vector<std::string> damaged_frozen;
    const auto note = [&](Version version, const absl::Status& status) {
      const std::string file = FrozenIn(version);
      if (absl::StrContains(status.message(), absl::StrCat(file, ": found"))) damaged_frozen.push_back(file);
    };
    const auto has_damaged = [&](Version version) {
      return std::any_of(damaged_frozen.begin(), damaged_frozen.end(), [&](const std::string& file) {
        std::error_code ignored;
        return std::filesystem::equivalent(file, FrozenIn(version), ignored);
      });
    };
    note(damaged, damage);
    const absl::StatusOr<std::vector<Version>> steps = directory_.Steps();
    for (const Version version : steps.value_or(std::vector<Version>())) {
      if (version == damaged || has_damaged(version)) continue;
      const absl::Status found = VerifyCheckpointFolder(directory_.FolderOf(version));
      if (found.ok()) {
        return absl::StrCat("remove the folder ", directory_.FolderOf(damaged), " to go on with --resume from ",
                            StepFolderName(version), ", which is whole");
      }
      note(version, found);
    }
    return absl::StrCat("there is no other whole checkpoint in ", directory_.path(),
                        damaged_frozen.empty()
                            ? ": put the file back from a copy, or start the run anew in another folder"
                            : ": put the file back from a copy (cp onto it, with nothing that reads it: all "
                              "checkpoints that share it have it again), or start the run anew in another folder");
  }

  std::string FrozenIn(Version version) const { return absl::StrCat(directory_.FolderOf(version), "/", kFrozenFile); }

  // The complete ones before `written` that are too many, and none of those that are kept for good. Of several with the
  // same weights and moments, as every step between was skipped, the newest counts alone: a run that diverges would
  // push out all that it could go on from. One that lies after it, or is damaged, is not this run's making: it is left
  // for a person to look at. Reads manifests, which is not for a PatientThread.
  std::vector<Version> TooMany(const RunState& written) const {
    std::vector<Version> too_many;
    const absl::StatusOr<std::vector<Version>> steps = directory_.Steps();
    if (!steps.ok()) LogNotRemoved(directory_.path(), steps.status());
    int kept = 1;
    int64_t counted_updates = UpdatingSteps(written);  // of the last one that counts
    for (const Version version : steps.value_or(std::vector<Version>())) {
      const bool for_good = run_.checkpoint.keeps_for_good(version.value());
      if (version >= written.version || (for_good && kept >= run_.checkpoint.keep)) continue;
      const std::string folder = directory_.FolderOf(version);
      const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
      if (!manifest.ok() || !CheckSizes(folder, *manifest).ok()) continue;
      const int64_t updates = UpdatingSteps(manifest->state);
      if (updates != counted_updates && kept < run_.checkpoint.keep) {
        ++kept;
        counted_updates = updates;
      } else if (!for_good) {
        too_many.push_back(version);
      }
    }
    return too_many;
  }
  // Costs disk, and no checkpoint: the run goes on.
  static void LogNotRemoved(const std::string& path, const absl::Status& status) {
    LogWarning("checkpoint_not_removed", {{"path", path}, {"error", status.message()}});
  }

  void SetLatestPath(std::string path) {
    MutexLock lock(mu_);
    latest_path_ = std::move(path);
  }

  // Fixed after construction.
  const CheckpointDirectory directory_;
  const ModelSpec model_;
  const RunConfig run_;

  const std::function<absl::Status()> claim_;    // null: nothing is asked
  const std::unique_ptr<CaptureBuffer> buffer_;  // used by Write alone
  // Of the checkpoint that was loaded, or written last; used by LoadLatest and Write alone.
  std::optional<SummedFrozenFile> frozen_;

  mutable Mutex mu_;
  std::string latest_path_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Create(std::string directory, const ModelSpec& model,
                                                                   const RunConfig& run,
                                                                   std::function<absl::Status()> claim) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<CaptureBuffer> buffer, CaptureBuffer::Create(CaptureBufferBytes(model, run)));
  auto checkpointer =
      std::make_unique<FolderCheckpointer>(std::move(directory), model, run, std::move(claim), std::move(buffer));
  EPS_RETURN_IF_ERROR(checkpointer->Start());
  return checkpointer;
}

}  // namespace eps::server
