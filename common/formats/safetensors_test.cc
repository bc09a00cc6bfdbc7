#include "common/formats/safetensors.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using Metadata = std::map<std::string, std::string>;

std::string LengthBytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

std::string FileOf(const std::string& json, const std::string& data) { return LengthBytes(json.size()) + json + data; }

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

SafetensorsEntry Entry(const std::string& name, const std::string& dtype, std::vector<int64_t> shape) {
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  return entry;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& content) {
    EXPECT_OK(WriteFileAtomically(path_, content));
    return SafetensorsReader::Open(path_);
  }
  // A file whose header is `json`, with `num_bytes` of data.
  absl::Status Read(const std::string& json, int num_bytes = 8) {
    return Open(FileOf(json, std::string(num_bytes, 'd'))).status();
  }
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(std::vector<SafetensorsEntry> entries,
                                                            const Metadata& metadata = {}) {
    return SafetensorsWriter::Create(path_, std::move(entries), metadata);
  }
  std::string Content() {
    absl::StatusOr<std::string> content = ReadFile(path_);
    EXPECT_OK(content);
    return content.ok() ? *content : "";
  }

  TempDir dir_;
  std::string path_ = dir_.File("x.safetensors");
};

// ---- Reading

TEST_F(SafetensorsTest, AFileThatAnotherProgramWroteIsRead) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0,3],)"
      R"("data_offsets":[8,8]}}   )";
  std::string data(16, '\0');
  const float values[2] = {1.5f, -2.0f};
  std::memcpy(data.data(), values, 8);
  data[8] = 7;
  ASSERT_OK_AND_ASSIGN(const auto file, Open(FileOf(json, data)));
  EXPECT_EQ(file->metadata(), (Metadata{{"format", "pt"}}));
  ASSERT_EQ(file->entries().size(), 3u);
  EXPECT_EQ(file->entries()[0].name, "a");
  const SafetensorsEntry* a = file->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(a->offset_bytes, static_cast<int64_t>(8 + json.size()));
  std::vector<float> read(2);
  ASSERT_OK(file->ReadFloats(*a, absl::MakeSpan(read)));
  EXPECT_EQ(read, (std::vector<float>{1.5f, -2.0f}));
  ASSERT_NE(file->Find("b"), nullptr);
  EXPECT_EQ(file->Data(*file->Find("b"))[0], std::byte{7});
  ASSERT_NE(file->Find("none"), nullptr);
  EXPECT_TRUE(file->Data(*file->Find("none")).empty());
  EXPECT_OK(file->ReadFloats(*file->Find("none"), {}));
  EXPECT_EQ(file->Find("c"), nullptr);
}

TEST_F(SafetensorsTest, AFileWithoutTensorsIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(FileOf("{}", "")));
  EXPECT_TRUE(file->entries().empty());
  EXPECT_TRUE(file->metadata().empty());
}

TEST_F(SafetensorsTest, SixteenBitFloatsAreConverted) {
  const std::vector<uint16_t> data = {0x3F80, 0xC000, 0x3C00, 0xC000};  // bf16 1, -2; fp16 1, -2
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), data.data(), 8);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(FileOf(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                                                    R"("h":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
                                                    bytes)));
  std::vector<float> values(2);
  ASSERT_OK(file->ReadFloats(*file->Find("b"), absl::MakeSpan(values)));
  EXPECT_EQ(values, (std::vector<float>{1, -2}));
  ASSERT_OK(file->ReadFloats(*file->Find("h"), absl::MakeSpan(values)));
  EXPECT_EQ(values, (std::vector<float>{1, -2}));
}

TEST_F(SafetensorsTest, APartIsReadAloneAndAgainAfterRelease) {
  const std::vector<uint16_t> data = {0x3F80, 0xC000, 0x4040, 0x3C00, 0xC000, 0x4200};  // bf16 1 -2 3; fp16 1 -2 3
  const std::string bytes(reinterpret_cast<const char*>(data.data()), 12);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(FileOf(R"({"b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                                                    R"("h":{"dtype":"F16","shape":[3],"data_offsets":[6,12]}})",
                                                    bytes)));
  for (const char* name : {"b", "h"}) {
    const SafetensorsEntry& entry = *file->Find(name);
    std::vector<float> values(2);
    for (int repeat = 0; repeat < 2; ++repeat) {
      ASSERT_OK(file->ReadFloatsAt(entry, 1, absl::MakeSpan(values)));
      EXPECT_EQ(values, (std::vector<float>{-2, 3}));
      file->Release(entry);
    }
    EXPECT_OK(file->ReadFloatsAt(entry, 3, {}));
    for (const int64_t first : {int64_t{-1}, int64_t{2}, std::numeric_limits<int64_t>::max()}) {
      EXPECT_THAT(file->ReadFloatsAt(entry, first, absl::MakeSpan(values)), StatusIs(kInvalid, "asked for 2 from"));
    }
  }
}

TEST_F(SafetensorsTest, FloatsOfAnotherDtypeOrLengthAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(FileOf(R"({"i":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
                                                    R"("f":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                                    "12345678")));
  std::vector<float> values(2);
  EXPECT_THAT(file->ReadFloats(*file->Find("i"), absl::MakeSpan(values).subspan(0, 1)),
              StatusIs(kInvalid, path_ + ": tensor \"i\": dtype I32, must be F32, F16 or BF16"));
  EXPECT_THAT(file->ReadFloats(*file->Find("f"), absl::MakeSpan(values)),
              StatusIs(kInvalid, "tensor \"f\": 1 elements, must be 2"));
}

// ---- Files that lie

TEST_F(SafetensorsTest, AMissingFileIsNamed) {
  EXPECT_THAT(SafetensorsReader::Open(path_), StatusIs(absl::StatusCode::kNotFound, path_));
}

TEST_F(SafetensorsTest, AnImpossibleHeaderLengthIsRefused) {
  EXPECT_THAT(Open(""), StatusIs(kInvalid, "is empty"));
  EXPECT_THAT(Open("1234567"), StatusIs(kInvalid, path_ + ": 7 bytes"));
  EXPECT_THAT(Open(LengthBytes(0) + "{}"), StatusIs(kInvalid, "header length (byte offset 0): 0"));
  EXPECT_THAT(Open("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
              StatusIs(kInvalid, "is a pointer of Git LFS, and not the file itself: run `git lfs pull`"));
  EXPECT_THAT(Open(LengthBytes(3) + "{}"), StatusIs(kInvalid, "header length (byte offset 0): 3, but only 2 bytes"));
  EXPECT_THAT(Open(LengthBytes(100'000'001) + "{}"),
              StatusIs(kInvalid, "header length (byte offset 0): 100000001, must be at most 100000000"));
  EXPECT_THAT(Open(LengthBytes(~uint64_t{0}) + "{}"), StatusIs(kInvalid, "18446744073709551615, must be at most"));
  EXPECT_THAT(Open(LengthBytes(uint64_t{1} << 63) + "{}"), StatusIs(kInvalid, "must be at most"));
}

TEST_F(SafetensorsTest, AHundredMegabytesOfHeaderThatSayNothingAreRefused) {
  std::string json(100'000'000, ' ');
  json.front() = '{';
  EXPECT_THAT(Read(json, 0), StatusIs(kInvalid, "not valid JSON"));
  std::fill(json.begin(), json.end(), '[');
  EXPECT_THAT(Read(json, 0), StatusIs(kInvalid, "header: is an array, must be an object"));
}

TEST_F(SafetensorsTest, AHeaderThatIsNoJsonIsRefusedWithItsPlace) {
  EXPECT_THAT(Read("{\"a\" 3}"), StatusIs(kInvalid, path_ + ": header is not valid JSON at byte offset 13"));
  for (const std::string bad :
       {"{", "x", "{\"a\":", "{}{}", "{},", "\xFF\xFF", "{\"\xFF\":{}}", "{'a':1}", "{\"a\\u12\":{}}"}) {
    EXPECT_THAT(Read(bad), StatusIs(kInvalid, "not valid JSON")) << bad;
  }
}

TEST_F(SafetensorsTest, AHeaderOfAnotherTypeIsRefused) {
  for (const std::string bad : {"[]", "3", "\"a\"", "null", "true", "1.5", "-1"}) {
    EXPECT_THAT(Read(bad), StatusIs(kInvalid, "must be an object")) << bad;
  }
}

TEST_F(SafetensorsTest, FieldsOfAnotherTypeAreNamed) {
  struct Case {
    const char *tensor, *message;
  };
  for (const Case& c : {
           Case{R"(3)", "tensor \"t\": is a number, must be an object"},
           Case{R"([])", "tensor \"t\": is an array, must be an object"},
           Case{R"(null)", "tensor \"t\": is null, must be an object"},
           Case{R"({"dtype":3})", "tensor \"t\": dtype: is a number, must be a string"},
           Case{R"({"dtype":["F32"]})", "tensor \"t\": dtype: is an array, must be a string"},
           Case{R"({"dtype":{}})", "tensor \"t\": dtype: is an object, must be a string"},
           Case{R"({"shape":2})", "tensor \"t\": shape: is a number, must be an array"},
           Case{R"({"shape":"2"})", "tensor \"t\": shape: is a string, must be an array"},
           Case{R"({"shape":["2"]})", "tensor \"t\": shape: holds a string"},
           Case{R"({"shape":[[2]]})", "tensor \"t\": shape: holds an array"},
           Case{R"({"shape":[null]})", "tensor \"t\": shape: holds null"},
           Case{R"({"shape":[true]})", "tensor \"t\": shape: holds a truth value"},
           Case{R"({"shape":[2.0]})", "tensor \"t\": shape: 2.0 is no whole number"},
           Case{R"({"shape":[-2]})", "tensor \"t\": shape: -2 is negative"},
           Case{R"({"shape":[9223372036854775808]})", "shape: 9223372036854775808 is too large"},
           Case{R"({"shape":[99999999999999999999]})", "tensor \"t\": shape: 99999999999999999999 is no whole number"},
           Case{R"({"data_offsets":{}})", "tensor \"t\": data_offsets: is an object, must be an array"},
           Case{R"({"data_offsets":[-1,7]})", "tensor \"t\": data_offsets: -1 is negative"},
           Case{R"({"data_offsets":[]})", "tensor \"t\": data_offsets: must be two numbers"},
           Case{R"({"data_offsets":[0]})", "tensor \"t\": data_offsets: must be two numbers"},
           Case{R"({"data_offsets":[0,4,8]})", "tensor \"t\": data_offsets: must be two numbers"},
           Case{R"({"extra":1})", "tensor \"t\": unknown key \"extra\""},
           Case{R"({"dtype":"F32","dtype":"F32"})", "tensor \"t\": dtype: given twice"},
           Case{R"({"shape":[],"data_offsets":[0,4]})", "tensor \"t\": dtype is missing"},
           Case{R"({"dtype":"F32","data_offsets":[0,4]})", "tensor \"t\": shape is missing"},
           Case{R"({"dtype":"F32","shape":[]})", "tensor \"t\": data_offsets is missing"},
           Case{R"({})", "tensor \"t\": dtype is missing"},
       }) {
    EXPECT_THAT(Read(std::string("{\"t\":") + c.tensor + "}"), StatusIs(kInvalid, c.message)) << c.tensor;
  }
}

TEST_F(SafetensorsTest, ADtypeThatIsNotKnownIsRefused) {
  EXPECT_THAT(Read(R"({"t":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})"),
              StatusIs(kInvalid, "tensor \"t\": dtype \"F33\" is not known"));
  EXPECT_THAT(Read(R"({"t":{"dtype":"f32","shape":[2],"data_offsets":[0,8]}})"), StatusIs(kInvalid, "not known"));
}

TEST_F(SafetensorsTest, ShapesThatOverflowAreRefused) {
  for (const std::string shape :
       {"9223372036854775807", "4294967296,4294967296", "4294967296,4294967296,0", "3037000500,3037000500"}) {
    EXPECT_THAT(Read("{\"t\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[0,8]}}"),
                StatusIs(kInvalid, "tensor \"t\": shape: more than 2^63 - 1 bytes"))
        << shape;
  }
  std::string ones = "1";
  for (int i = 0; i < 100; ++i) ones += ",1";
  EXPECT_THAT(Read("{\"t\":{\"dtype\":\"F32\",\"shape\":[" + ones + "],\"data_offsets\":[0,4]}}"),
              StatusIs(kInvalid, "more than 64 dimensions"));
}

TEST_F(SafetensorsTest, OffsetsThatDoNotFitTheShapeAreRefused) {
  for (const std::string offsets : {"0,4", "0,12", "8,0", "0,0", "9223372036854775807,0", "0,9223372036854775807"}) {
    EXPECT_THAT(Read("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" + offsets + "]}}"),
                StatusIs(kInvalid, "do not span the 8 bytes"))
        << offsets;
  }
}

TEST_F(SafetensorsTest, TensorsBeyondTheFileAreRefused) {
  EXPECT_THAT(Read(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
              StatusIs(kInvalid, "tensor \"t\" at data offset 0 of 8 bytes ends beyond the file, which has 7"));
  EXPECT_THAT(Read(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]}})"),
              StatusIs(kInvalid, "ends beyond the file"));
  EXPECT_THAT(Read(R"({"t":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}})"),
              StatusIs(kInvalid, "ends beyond the file"));
}

TEST_F(SafetensorsTest, TensorsThatOverlapAreRefused) {
  EXPECT_THAT(Read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},
                      "c":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})"),
              StatusIs(kInvalid, "tensor \"b\" at data offset 2 of 4 bytes overlaps the one before, which ends at 4"));
  EXPECT_THAT(Read(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                      "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
              StatusIs(kInvalid, "tensor \"b\" at data offset 0 of 8 bytes overlaps"));
}

TEST_F(SafetensorsTest, GapsAndTrailingBytesAreRefused) {
  EXPECT_THAT(Read(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                      "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              StatusIs(kInvalid, "tensor \"b\" at data offset 4 of 4 bytes leaves a gap after 2"));
  EXPECT_THAT(Read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"), StatusIs(kInvalid, "a gap after 0"));
  EXPECT_THAT(Read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
              StatusIs(kInvalid, "4 bytes after the last tensor, from byte offset"));
  EXPECT_THAT(Read("{}", 1), StatusIs(kInvalid, "1 bytes after the last tensor"));
}

TEST_F(SafetensorsTest, ANameGivenTwiceIsRefused) {
  EXPECT_THAT(Read(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              StatusIs(kInvalid, "tensor \"a\": given twice"));
  EXPECT_THAT(Read(R"({"__metadata__":{},"__metadata__":{}})", 0), StatusIs(kInvalid, "__metadata__: given twice"));
}

TEST_F(SafetensorsTest, MetadataHoldsTextAlone) {
  EXPECT_THAT(Read(R"({"__metadata__":3})", 0), StatusIs(kInvalid, "__metadata__: is a number, must be an object"));
  EXPECT_THAT(Read(R"({"__metadata__":{"a":1}})", 0), StatusIs(kInvalid, "__metadata__: \"a\": is a number"));
  EXPECT_THAT(Read(R"({"__metadata__":{"a":{}}})", 0), StatusIs(kInvalid, "\"a\": is an object, must be a string"));
  EXPECT_THAT(Read(R"({"__metadata__":{"a":["b"]}})", 0), StatusIs(kInvalid, "\"a\": is an array, must be a string"));
  EXPECT_THAT(Read(R"({"__metadata__":{"a":"1","a":"2"}})", 0), StatusIs(kInvalid, "given twice"));
}

TEST_F(SafetensorsTest, NamesFromTheFileAreEscapedAndCut) {
  const std::string long_name(5000, 'n');
  EXPECT_THAT(Read("{\"a\\n\\u0007\":3}"), StatusIs(kInvalid, "tensor \"a\\n\\x07\": is a number"));
  const absl::Status status = Read("{\"" + long_name + "\":3}");
  EXPECT_THAT(status, StatusIs(kInvalid, "nnn...\""));
  EXPECT_LT(status.message().size(), 500u);
}

TEST_F(SafetensorsTest, EveryTruncationOfAFileIsRefused) {
  const std::string whole = FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(Open(whole.substr(0, length)), StatusIs(kInvalid)) << length;
  }
}

TEST_F(SafetensorsTest, ChangedBytesAreRefusedOrStayInsideTheFile) {
  const std::string whole = FileOf(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]}})",
                                   "123456789012");
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::string changed = whole;
    for (unsigned i = 0; i < 1 + round % 3u; ++i) {
      const char byte = round % 2 == 0 ? static_cast<char>(random() & 0xFF) : " {}[]\":,0129"[random() % 12];
      changed[random() % changed.size()] = byte;
    }
    // In place: thousands of synced files would take their time.
    ASSERT_OK_AND_ASSIGN(FileDescriptor file, OpenFile(path_, O_WRONLY | O_CREAT));
    ASSERT_OK(WriteAt(file, path_, 0, changed));
    const auto reader = SafetensorsReader::Open(path_);
    if (!reader.ok()) {
      EXPECT_THAT(reader, StatusIs(kInvalid, path_));
      continue;
    }
    for (const SafetensorsEntry& entry : (*reader)->entries()) {
      EXPECT_GE(entry.offset_bytes, 8);
      EXPECT_LE(entry.offset_bytes + entry.num_bytes, static_cast<int64_t>(changed.size()));
    }
  }
}

// ---- Writing

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {0x3F80};
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       Create({Entry("a", "F32", {2, 3}), Entry("empty", "F32", {0}), Entry("b \"q\"", "BF16", {1})},
                              {{"format", "pt"}, {"line", "1\n2"}}));
  ASSERT_OK(writer->Write(2, 0, BytesOf(b)));
  ASSERT_OK(writer->Write(0, 0, BytesOf(a)));
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(path_));
  EXPECT_EQ(file->metadata(), (Metadata{{"format", "pt"}, {"line", "1\n2"}}));
  ASSERT_EQ(file->entries().size(), 3u);
  std::vector<float> read(6);
  ASSERT_NE(file->Find("a"), nullptr);
  EXPECT_EQ(file->Find("a")->shape, (std::vector<int64_t>{2, 3}));
  ASSERT_OK(file->ReadFloats(*file->Find("a"), absl::MakeSpan(read)));
  EXPECT_EQ(read, a);
  ASSERT_NE(file->Find("b \"q\""), nullptr);
  EXPECT_EQ(file->Find("b \"q\"")->num_bytes, 2);
}

TEST_F(SafetensorsTest, TheDataStartsAlignedAndThePaddingIsSpaces) {
  for (int length = 1; length < 70; ++length) {
    ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry(std::string(length, 'n'), "U8", {1})}));
    ASSERT_OK(writer->Write(0, 0, BytesOf(std::vector<uint8_t>{9})));
    ASSERT_OK(writer->Finish());
    ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(path_));
    EXPECT_EQ(file->entries()[0].offset_bytes % 64, 0);
    const std::string content = Content();
    EXPECT_EQ(content.back(), 9);
    EXPECT_EQ(content[8], '{');
    EXPECT_NE(content.find("}}"), std::string::npos);
    EXPECT_EQ(content.find_first_not_of(' ', content.find("}}") + 2), content.size() - 1);
  }
}

TEST_F(SafetensorsTest, TheHeaderIsJsonWithTheTensorsInTheOrderGiven) {
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("z", "F32", {}), Entry("a", "I64", {1})}, {{"k", "v"}}));
  const std::string content = Content();
  uint64_t length = 0;
  std::memcpy(&length, content.data(), 8);
  const auto json = nlohmann::json::parse(content.substr(8, length), nullptr, false);
  EXPECT_EQ(json, nlohmann::json::parse(R"({"__metadata__":{"k":"v"},"z":{"dtype":"F32","shape":[],
      "data_offsets":[0,4]},"a":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})"));
  EXPECT_EQ(content.size(), 8 + length + 12);
}

TEST_F(SafetensorsTest, PartsMayComeFromSeveralThreadsInAnyOrder) {
  constexpr int kThreads = 4, kParts = 100, kPartElems = 7;
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("a", "F32", {kThreads * kParts * kPartElems})}));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = kParts - 1; i >= 0; --i) {
        const int part = i * kThreads + t;
        std::vector<float> values(kPartElems);
        for (int j = 0; j < kPartElems; ++j) values[j] = static_cast<float>(part * kPartElems + j);
        EXPECT_OK(writer->Write(0, int64_t{4} * part * kPartElems, BytesOf(values)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(path_));
  std::vector<float> values(kThreads * kParts * kPartElems);
  ASSERT_OK(file->ReadFloats(file->entries()[0], absl::MakeSpan(values)));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i));
}

TEST_F(SafetensorsTest, AByteThatWasNeverWrittenIsNamed) {
  const std::vector<uint8_t> bytes(10, 1);
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("a", "U8", {10}), Entry("b", "U8", {10})}));
  ASSERT_OK(writer->Write(0, 0, BytesOf(bytes)));
  ASSERT_OK(writer->Write(1, 0, BytesOf(bytes).subspan(0, 4)));
  ASSERT_OK(writer->Write(1, 5, BytesOf(bytes).subspan(0, 5)));
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         path_ + ": tensor \"b\": byte 4 of 10 was never written"));
}

TEST_F(SafetensorsTest, NothingAtAllIsNotEnough) {
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("a", "U8", {10})}));
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition, "byte 0 of 10"));
}

TEST_F(SafetensorsTest, BytesMayBeWrittenTwice) {
  const std::vector<uint8_t> bytes(10, 1);
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("a", "U8", {10})}));
  ASSERT_OK(writer->Write(0, 3, BytesOf(bytes).subspan(0, 4)));
  ASSERT_OK(writer->Write(0, 2, BytesOf(bytes).subspan(0, 8)));
  ASSERT_OK(writer->Write(0, 0, BytesOf(bytes).subspan(0, 5)));
  EXPECT_OK(writer->Finish());
}

TEST_F(SafetensorsTest, WritesOutsideATensorAreRefused) {
  const std::vector<uint8_t> bytes(10, 1);
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({Entry("a", "U8", {10}), Entry("b", "U8", {10})}));
  EXPECT_THAT(writer->Write(2, 0, {}), StatusIs(kInvalid, "tensor 2 of 2"));
  EXPECT_THAT(writer->Write(0, 1, BytesOf(bytes)), StatusIs(kInvalid, "tensor \"a\": 10 bytes at 1 of 10"));
  EXPECT_THAT(writer->Write(0, -1, BytesOf(bytes).subspan(0, 1)), StatusIs(kInvalid, "at -1"));
  EXPECT_THAT(writer->Write(0, INT64_MAX, BytesOf(bytes).subspan(0, 1)), StatusIs(kInvalid, "tensor \"a\""));
}

TEST_F(SafetensorsTest, AfterFinishNothingIsWritten) {
  ASSERT_OK_AND_ASSIGN(const auto writer, Create({}));
  ASSERT_OK(writer->Finish());
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kFailedPrecondition, "already finished"));
  EXPECT_THAT(writer->Write(0, 0, {}), StatusIs(absl::StatusCode::kFailedPrecondition, "already finished"));
}

TEST_F(SafetensorsTest, BadEntriesAreRefusedBeforeAFileIsMade) {
  EXPECT_THAT(Create({Entry("a", "F33", {1})}), StatusIs(kInvalid, "tensor \"a\": dtype \"F33\" is not known"));
  EXPECT_THAT(Create({Entry("a", "F32", {-1})}), StatusIs(kInvalid, "tensor \"a\": shape: -1 is negative"));
  EXPECT_THAT(Create({Entry("a", "F32", {INT64_MAX})}), StatusIs(kInvalid, "tensor \"a\": shape"));
  EXPECT_THAT(Create({Entry("a", "U8", {INT64_MAX}), Entry("b", "U8", {INT64_MAX})}), StatusIs(kInvalid, "2^62"));
  EXPECT_THAT(Create({Entry("a", "F32", {1}), Entry("a", "F32", {1})}),
              StatusIs(kInvalid, "tensor \"a\": given twice"));
  EXPECT_THAT(Create({Entry("__metadata__", "F32", {1})}), StatusIs(kInvalid, "reserved"));
  EXPECT_THAT(Create({Entry("\xFF", "F32", {1})}), StatusIs(kInvalid, "not UTF-8"));
  EXPECT_THAT(Create({}, {{"k", "\xFF"}}), StatusIs(kInvalid, "not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SafetensorsTest, AFolderThatIsMissingIsNamed) {
  EXPECT_THAT(SafetensorsWriter::Create(dir_.File("none/x.safetensors"), {}, {}),
              StatusIs(absl::StatusCode::kNotFound, "none/x.safetensors"));
}

}  // namespace
}  // namespace eps
