#include "common/formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/git_lfs.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxDimensions = 64;
constexpr absl::string_view kMetadataName = "__metadata__";

struct DtypeSize {
  absl::string_view name;
  int64_t num_bytes;
};
constexpr std::array<DtypeSize, 15> kDtypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"I16", 2},
                                                {"U16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I32", 4},
                                                {"U32", 4},
                                                {"F32", 4},
                                                {"I64", 8},
                                                {"U64", 8},
                                                {"F64", 8}}};

// ---- The JSON, as events

// Builds a SafetensorsHeader from {"__metadata__": {"k": "v"}, "name": {"dtype": "F32", "shape":
// [2, 3], "data_offsets": [0, 24]}, ...} and stops at the first event that does not fit. Offsets
// are still relative.
class HeaderBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader& header() { return header_; }
  const absl::Status& status() const { return status_; }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kNames;
        return true;
      case State::kName:
        state_ = in_metadata_ ? State::kMetadata : State::kTensor;
        return true;
      default:
        return Wrong("an object");
    }
  }

  bool key(string_t& name) override {
    if (state_ == State::kNames) return StartName(name);
    key_ = name;
    if (state_ == State::kMetadata) {
      state_ = State::kMetadataValue;
      return header_.metadata.count(key_) == 0 || Fail("given twice");
    }
    return StartTensorField();
  }

  bool end_object() override {
    if (state_ == State::kNames) {
      state_ = State::kEnd;
      return true;
    }
    if (state_ == State::kTensor && !EndTensor()) return false;
    state_ = State::kNames;
    return true;
  }

  bool start_array(size_t) override {
    if (!array_open_ && (state_ == State::kShape || state_ == State::kOffsets)) {
      array_open_ = true;
      return true;
    }
    return Wrong("an array");
  }

  bool end_array() override {
    array_open_ = false;
    if (state_ == State::kOffsets && offsets_.size() != 2) return Fail("must be two numbers");
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!array_open_) return Wrong("a number");
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return Fail(absl::StrCat(value, " is too large"));
    if (state_ == State::kShape) {
      if (entry_.shape.size() == kMaxDimensions) return Fail(absl::StrCat("more than ", kMaxDimensions, " dimensions"));
      entry_.shape.push_back(static_cast<int64_t>(value));
    } else if (offsets_.size() == 2) {
      return Fail("must be two numbers");
    } else {
      offsets_.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kDtype) {
      entry_.dtype = value;
      state_ = State::kTensor;
      return true;
    }
    if (state_ == State::kMetadataValue) {
      header_.metadata[key_] = value;
      state_ = State::kMetadata;
      return true;
    }
    return Wrong("a string");
  }

  bool number_integer(number_integer_t value) override {
    return array_open_ ? Fail(absl::StrCat(value, " is negative")) : Wrong("a number");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return array_open_ ? Fail(absl::StrCat(text.substr(0, 40), " is no whole number, or too large"))
                       : Wrong("a number");
  }
  bool null() override { return Wrong("null"); }
  bool boolean(bool) override { return Wrong("a truth value"); }
  bool binary(binary_t&) override { return Wrong("binary"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    // The library counts characters from 1.
    const size_t offset = kLengthBytes + position - (position > 0 ? 1 : 0);
    status_ = absl::InvalidArgumentError(absl::StrCat("header is not valid JSON at byte offset ", offset));
    return false;
  }

 private:
  enum class State {
    kStart,          // before the outer object
    kNames,          // in it, at a name or its end
    kName,           // after a name
    kMetadata,       // in the metadata
    kMetadataValue,  // after a key of it
    kTensor,         // in a tensor's object
    kDtype,          // after "dtype"
    kShape,          // after "shape", until the array ends
    kOffsets,        // after "data_offsets", until the array ends
    kEnd
  };

  bool Fail(absl::string_view what) {
    std::string where;
    if (state_ != State::kStart && state_ != State::kNames) {
      where = in_metadata_ ? std::string(kMetadataName) : absl::StrCat("tensor ", ShowTensorName(entry_.name));
      if (state_ != State::kName && state_ != State::kTensor) absl::StrAppend(&where, ": ", ShowKey());
      where += ": ";
    }
    status_ = absl::InvalidArgumentError(absl::StrCat("header: ", where, what));
    return false;
  }

  bool Wrong(absl::string_view found) {
    switch (state_) {
      case State::kStart:
        return Fail(absl::StrCat("is ", found, ", must be an object"));
      case State::kName:
        return Fail(absl::StrCat("is ", found, ", must be an object"));
      case State::kMetadataValue:
      case State::kDtype:
        return Fail(absl::StrCat("is ", found, ", must be a string"));
      default:
        return Fail(array_open_ ? absl::StrCat("holds ", found, ", must hold whole numbers")
                                : absl::StrCat("is ", found, ", must be an array of whole numbers"));
    }
  }

  // Keys other than the format's own come from the file.
  std::string ShowKey() const { return in_metadata_ ? ShowTensorName(key_) : key_; }

  bool StartName(const std::string& name) {
    entry_ = {};
    entry_.name = name;
    offsets_.clear();
    seen_.clear();
    in_metadata_ = name == kMetadataName;
    state_ = State::kName;
    return names_.insert(name).second || Fail("given twice");
  }

  bool StartTensorField() {
    const State next = key_ == "dtype"          ? State::kDtype
                       : key_ == "shape"        ? State::kShape
                       : key_ == "data_offsets" ? State::kOffsets
                                                : State::kTensor;
    if (next == State::kTensor) return Fail(absl::StrCat("unknown key ", ShowTensorName(key_)));
    state_ = next;
    return seen_.insert(next).second || Fail("given twice");
  }

  bool EndTensor() {
    if (seen_.count(State::kDtype) == 0) return Fail("dtype is missing");
    if (seen_.count(State::kShape) == 0) return Fail("shape is missing");
    if (seen_.count(State::kOffsets) == 0) return Fail("data_offsets is missing");
    const absl::StatusOr<int64_t> num_bytes = SafetensorsTensorBytes(entry_.dtype, entry_.shape);
    if (!num_bytes.ok()) return Fail(num_bytes.status().message());
    const int64_t begin = offsets_[0], end = offsets_[1];
    if (end < begin || end - begin != *num_bytes) {
      return Fail(absl::StrCat("data_offsets [", begin, ", ", end, "] do not span the ", *num_bytes,
                               " bytes of its shape and dtype"));
    }
    entry_.offset_bytes = begin;
    entry_.num_bytes = *num_bytes;
    header_.entries.push_back(std::move(entry_));
    return true;
  }

  SafetensorsHeader header_;
  absl::Status status_;
  State state_ = State::kStart;
  bool in_metadata_ = false;
  bool array_open_ = false;
  std::string key_;
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
  std::set<State> seen_;
  std::set<std::string> names_;
};

// ---- The places

// Sorts the entries and makes their offsets absolute; together they must be exactly the bytes after
// the header.
absl::Status PlaceEntries(int64_t data_start, int64_t file_bytes, std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.offset_bytes, a.num_bytes, a.name) < std::tie(b.offset_bytes, b.num_bytes, b.name);
  });
  const int64_t data_bytes = file_bytes - data_start;
  int64_t end = 0;  // of the tensors so far, relative to data_start
  for (SafetensorsEntry& entry : entries) {
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", ShowTensorName(entry.name), " at data offset ",
                                                     entry.offset_bytes, " of ", entry.num_bytes, " bytes ", what));
    };
    if (entry.offset_bytes > data_bytes - entry.num_bytes) {
      return fail(absl::StrCat("ends beyond the file, which has ", data_bytes, " bytes of data"));
    }
    if (entry.offset_bytes < end) return fail(absl::StrCat("overlaps the one before, which ends at ", end));
    if (entry.offset_bytes > end) return fail(absl::StrCat("leaves a gap after ", end));
    end += entry.num_bytes;
    entry.offset_bytes += data_start;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(data_bytes - end, " bytes after the last tensor, from byte offset ",
                                                   data_start + end, " on, belong to none"));
  }
  return absl::OkStatus();
}

// Bytes of JSON. Checked against the file's length before anything of that size is touched.
absl::StatusOr<int64_t> HeaderBytes(absl::Span<const std::byte> file) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_bytes, " bytes, must be at least the ", kLengthBytes, " of the header's length"));
  }
  const absl::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  EPS_RETURN_IF_ERROR(CheckNoGitLfsPointer(text));
  uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length == 0) return absl::InvalidArgumentError("header length (byte offset 0): 0, must be at least 2");
  if (length > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return absl::InvalidArgumentError(
        absl::StrCat("header length (byte offset 0): ", length, ", must be at most ", kMaxSafetensorsHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header length (byte offset 0): ", length, ", but only ",
                                                   file_bytes - kLengthBytes, " bytes follow"));
  }
  return static_cast<int64_t>(length);
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("(", absl::StrJoin(shape, ", "), ")"); }

std::string ShowTensorName(absl::string_view name) {
  constexpr size_t kMaxShown = 120;
  if (name.size() <= kMaxShown) return absl::StrCat("\"", absl::CHexEscape(name), "\"");
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kMaxShown)), "...\"");
}

absl::StatusOr<int64_t> SafetensorsTensorBytes(absl::string_view dtype, const std::vector<int64_t>& shape) {
  const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeSize& d) { return d.name == dtype; });
  if (known == kDtypes.end()) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", ShowTensorName(dtype), " is not known"));
  }
  int64_t num_bytes = known->num_bytes;
  for (const int64_t dim : shape) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("shape: ", dim, " is negative"));
    if (__builtin_mul_overflow(num_bytes, dim, &num_bytes)) {
      return absl::InvalidArgumentError("shape: more than 2^63 - 1 bytes");
    }
  }
  return num_bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const std::byte> file) {
  EPS_ASSIGN_OR_RETURN(const int64_t header_bytes, HeaderBytes(file));
  const char* json = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  HeaderBuilder builder;
  const bool parsed = nlohmann::json::sax_parse(json, json + header_bytes, &builder);
  EPS_RETURN_IF_ERROR(builder.status());
  EPS_CHECK(parsed);  // every event that ends the parse leaves a status
  EPS_RETURN_IF_ERROR(
      PlaceEntries(kLengthBytes + header_bytes, static_cast<int64_t>(file.size()), builder.header().entries));
  return std::move(builder.header());
}

}  // namespace eps
