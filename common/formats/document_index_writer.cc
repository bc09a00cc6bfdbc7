#include "common/formats/document_index_writer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/pending_file.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_bytes.h"

namespace eps {
namespace {

constexpr size_t kBufferBytes = 1 << 18;  // four of them at most

void AppendLittleEndian(std::string& bytes, uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

// One section while it grows. Where it will lie in the file is not known before the others end, so each has a file of
// its own until then.
class Section {
 public:
  explicit Section(std::unique_ptr<PendingFile> file) : file_(std::move(file)) {}

  absl::Status Append(uint64_t value, int num_bytes) {
    AppendLittleEndian(buffer_, value, num_bytes);
    if (buffer_.size() < kBufferBytes) return absl::OkStatus();
    return Flush();
  }
  absl::Status Flush() {
    EPS_RETURN_IF_ERROR(file_->Append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }
  // Flushed, and filled up to where the next section begins.
  absl::Status Fill() {
    while ((file_->num_bytes() + static_cast<int64_t>(buffer_.size())) % 8 != 0) buffer_.push_back('\0');
    return Flush();
  }
  PendingFile& file() { return *file_; }

 private:
  std::unique_ptr<PendingFile> file_;
  std::string buffer_;
};

// Packs ranges of tokens into bits, 8 tokens a byte.
class BitPacker {
 public:
  explicit BitPacker(Section& out) : out_(out) {}

  absl::Status Add(int64_t num_tokens, bool counted) {
    while (num_tokens > 0) {
      const auto taken = static_cast<int>(std::min<int64_t>(num_tokens, 8 - num_bits_));
      if (counted) bits_ |= ((1u << taken) - 1) << num_bits_;
      num_bits_ += taken;
      num_tokens -= taken;
      if (num_bits_ == 8) EPS_RETURN_IF_ERROR(End());
    }
    return absl::OkStatus();
  }
  // What is left of the last byte.
  absl::Status End() {
    if (num_bits_ == 0) return absl::OkStatus();
    EPS_RETURN_IF_ERROR(out_.Append(bits_, 1));
    bits_ = 0;
    num_bits_ = 0;
    return absl::OkStatus();
  }

 private:
  Section& out_;
  unsigned bits_ = 0;
  int num_bits_ = 0;
};

std::string NameLines(const std::vector<std::string>& names) {
  std::string lines;
  for (const std::string& name : names) absl::StrAppend(&lines, name, "\n");
  return lines;
}

absl::Status CheckClassNames(const DocumentIndexWriter::Options& options) {
  const std::vector<std::string>& names = options.class_names;
  if (!names.empty() && !options.has_labels) return absl::InvalidArgumentError("class_names: given without labels");
  if (NameLines(names).size() > static_cast<size_t>(kMaxClassNamesBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("class_names: more than ", kMaxClassNamesBytes, " bytes: are these the labels?"));
  }
  for (const std::string& name : names) {
    if (!name.empty() && name.find('\n') == std::string::npos) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("class_names: \"", absl::CHexEscape(name), "\", must be a line and not empty"));
  }
  return absl::OkStatus();
}

class FileWriter final : public DocumentIndexWriter {
 public:
  FileWriter(const Options& options, std::unique_ptr<PendingFile> file, std::unique_ptr<PendingFile> counted,
             std::unique_ptr<PendingFile> labels, std::unique_ptr<PendingFile> second_parts)
      : options_(options),
        class_names_(NameLines(options.class_names)),
        first_tokens_(std::move(file)),
        counted_(std::move(counted)),
        labels_(std::move(labels)),
        second_parts_(std::move(second_parts)),
        packer_(counted_) {}

  absl::Status Start() {
    EPS_RETURN_IF_ERROR(first_tokens_.file().Append(std::string(kDocumentIndexHeaderBytes, '\0')));
    return first_tokens_.Append(0, 8);
  }

  absl::Status Add(const Document& document) override {
    EPS_RETURN_IF_ERROR(status_);
    status_ = completed_ ? absl::FailedPreconditionError("the document index is complete") : AddChecked(document);
    if (!status_.ok()) {
      status_ = Annotate(status_, absl::StrCat("document ", num_documents_, " of \"", path(), "\""));
    }
    return status_;
  }

  absl::Status Complete() override {
    EPS_RETURN_IF_ERROR(status_);
    if (!completed_) status_ = PutTogether();
    completed_ = true;
    return status_;
  }

  absl::Status Finish() override {
    EPS_RETURN_IF_ERROR(Complete());
    return first_tokens_.file().Publish();
  }

 private:
  int64_t class_names_bytes() const { return static_cast<int64_t>(class_names_.size()); }
  const std::string& path() { return first_tokens_.file().path(); }

  absl::Status AddChecked(const Document& document) {
    EPS_RETURN_IF_ERROR(Check(document));
    num_tokens_ += document.num_tokens;
    EPS_RETURN_IF_ERROR(first_tokens_.Append(static_cast<uint64_t>(num_tokens_), 8));
    EPS_RETURN_IF_ERROR(PackCounted(document));
    if (options_.has_labels) EPS_RETURN_IF_ERROR(labels_.Append(static_cast<uint32_t>(*document.label), 4));
    if (document.second_part) flags_ |= kHasSecondParts;
    // A document of this many tokens can have no second part to tell of; it is found out at the end if one is told of.
    const int64_t second = document.second_part.value_or(document.num_tokens);
    if (second > std::numeric_limits<uint32_t>::max()) too_long_for_parts_ = true;
    EPS_RETURN_IF_ERROR(second_parts_.Append(static_cast<uint32_t>(second), 4));
    ++num_documents_;
    return absl::OkStatus();
  }

  absl::Status Check(const Document& document) const {
    if (document.num_tokens < 1) return absl::InvalidArgumentError("it has no token");
    if (document.num_tokens > kMaxIndexedTokens - num_tokens_) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxIndexedTokens, " tokens in all"));
    }
    int64_t end = 0;
    for (const TokenRange& range : document.counted) {
      if (range.begin < end || range.end <= range.begin || range.end > document.num_tokens) {
        return absl::InvalidArgumentError(absl::StrCat("counted: [", range.begin, ", ", range.end, ") after ", end,
                                                       ", of ", document.num_tokens, " tokens"));
      }
      end = range.end;
    }
    if (document.label.has_value() != options_.has_labels) {
      return absl::InvalidArgumentError(options_.has_labels ? "label: missing" : "label: the others have none");
    }
    if (document.label && *document.label < 0) {
      return absl::InvalidArgumentError(absl::StrCat("label: ", *document.label, ", must be at least 0"));
    }
    const auto num_names = static_cast<int64_t>(options_.class_names.size());
    if (num_names > 0 && *document.label >= num_names) {
      return absl::InvalidArgumentError(
          absl::StrCat("label: ", *document.label, ", must be below ", num_names, ", the number of class_names"));
    }
    if (document.second_part && (*document.second_part < 1 || *document.second_part >= document.num_tokens)) {
      return absl::InvalidArgumentError(
          absl::StrCat("second_part: ", *document.second_part, ", must be in [1, ", document.num_tokens, ")"));
    }
    return absl::OkStatus();
  }

  absl::Status PackCounted(const Document& document) {
    int64_t done = 0;
    for (const TokenRange& range : document.counted) {
      if (range.begin > done) flags_ |= kHasCounted;
      EPS_RETURN_IF_ERROR(packer_.Add(range.begin - done, false));
      EPS_RETURN_IF_ERROR(packer_.Add(range.end - range.begin, true));
      done = range.end;
    }
    if (done < document.num_tokens) flags_ |= kHasCounted;
    return packer_.Add(document.num_tokens - done, false);
  }

  absl::Status PutTogether() {
    if (num_documents_ == 0) return absl::InvalidArgumentError(absl::StrCat("\"", path(), "\": no documents"));
    if (too_long_for_parts_ && (flags_ & kHasSecondParts) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", path(), "\": a document of 2^32 tokens or more among pairs"));
    }
    if (options_.may_be_cut) flags_ |= kMayBeCut;
    if (options_.has_labels) flags_ |= kHasLabels;
    EPS_RETURN_IF_ERROR(packer_.End());
    EPS_RETURN_IF_ERROR(first_tokens_.Flush());
    PendingFile& file = first_tokens_.file();
    for (const auto& [flag, section] :
         {std::pair(kHasCounted, &counted_), {kHasLabels, &labels_}, {kHasSecondParts, &second_parts_}}) {
      if ((flags_ & flag) == 0) continue;
      EPS_RETURN_IF_ERROR(section->Fill());
      EPS_RETURN_IF_ERROR(file.AppendAllOf(section->file()));
    }
    const DocumentIndexSections sections =
        LayOutDocumentIndex(flags_, num_tokens_, num_documents_, class_names_bytes());
    EPS_CHECK(file.num_bytes() == sections.class_names);
    std::string names = class_names_;
    names.resize(static_cast<size_t>(sections.end - sections.class_names));
    EPS_RETURN_IF_ERROR(file.Append(names));
    EPS_RETURN_IF_ERROR(file.WriteAt(0, Header()));
    return file.Sync();
  }

  std::string Header() const {
    std::string header = "EPSD";
    AppendLittleEndian(header, kDocumentIndexFormat, 2);
    AppendLittleEndian(header, static_cast<uint64_t>(options_.token_bytes), 1);
    AppendLittleEndian(header, flags_, 1);
    AppendLittleEndian(header, static_cast<uint64_t>(num_tokens_), 8);
    AppendLittleEndian(header, static_cast<uint64_t>(num_documents_), 8);
    AppendLittleEndian(header, static_cast<uint64_t>(class_names_bytes()), 8);
    header += absl::HexStringToBytes(options_.tokenizer_fingerprint);
    return header;
  }

  const Options options_;
  const std::string class_names_;  // as their section has them
  Section first_tokens_;           // the header and this one lie in the file itself
  Section counted_;
  Section labels_;
  Section second_parts_;
  BitPacker packer_;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  uint8_t flags_ = 0;
  bool too_long_for_parts_ = false;
  bool completed_ = false;
  absl::Status status_;  // the first error
};

bool IsFingerprint(const std::string& text) {
  if (text.size() != 2 * kFingerprintBytes) return false;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c)) && (c < 'a' || c > 'f')) return false;
  }
  return true;
}

}  // namespace

std::string DocumentIndexPath(const std::string& token_path) { return absl::StrCat(token_path, ".docs"); }

absl::StatusOr<std::unique_ptr<DocumentIndexWriter>> DocumentIndexWriter::Create(const std::string& path,
                                                                                 const Options& options) {
  if (options.token_bytes != 2 && options.token_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrCat("token_bytes: ", options.token_bytes, ", must be 2 or 4"));
  }
  if (!IsFingerprint(options.tokenizer_fingerprint)) {
    return absl::InvalidArgumentError(absl::StrCat("fingerprint of the tokenizer: \"",
                                                   absl::CHexEscape(options.tokenizer_fingerprint),
                                                   "\", must be the 64 lower-case hexadecimal digits of a SHA-256"));
  }
  EPS_RETURN_IF_ERROR(CheckClassNames(options));
  std::unique_ptr<PendingFile> files[4];
  for (std::unique_ptr<PendingFile>& file : files) {
    EPS_ASSIGN_OR_RETURN(file, PendingFile::Create(path));
  }
  auto writer = std::make_unique<FileWriter>(options, std::move(files[0]), std::move(files[1]), std::move(files[2]),
                                             std::move(files[3]));
  EPS_RETURN_IF_ERROR(writer->Start());
  return writer;
}

}  // namespace eps
