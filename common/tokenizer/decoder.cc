#include "common/tokenizer/decoder.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_alphabet.h"
#include "common/tokenizer/metaspace.h"
#include "common/tokenizer/text_pattern.h"

namespace eps {
namespace {

using Made = absl::StatusOr<std::unique_ptr<Decoder>>;

class ByteLevelDecoder : public Decoder {
 public:
  void Apply(std::vector<DecodedToken>& tokens) const override {
    for (DecodedToken& token : tokens) {
      if (token.added) continue;
      if (std::optional<std::string> bytes = BytesOfSpelling(token.text)) token.text = *std::move(bytes);
    }
  }
};

// <0x0A> is a line's end.
class ByteFallbackDecoder : public Decoder {
 public:
  void Apply(std::vector<DecodedToken>& tokens) const override {
    constexpr size_t kLength = 6;
    for (DecodedToken& token : tokens) {
      const absl::string_view text = token.text;
      if (text.size() != kLength || !absl::StartsWith(text, "<0x") || text.back() != '>') continue;
      const absl::string_view digits = text.substr(3, 2);
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
          !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]))) {
        continue;
      }
      token.text = absl::HexStringToBytes(digits);
    }
  }
};

class FuseDecoder : public Decoder {
 public:
  void Apply(std::vector<DecodedToken>& tokens) const override {
    DecodedToken all{"", false};
    for (const DecodedToken& token : tokens) all.text += token.text;
    tokens.assign(1, std::move(all));
  }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::vector<DecodedToken>& tokens) const override {
    PatternScratch scratch;
    for (DecodedToken& token : tokens) {
      // A regular expression wants UTF-8, and bytes of a character may be there already.
      std::string copy;
      if (WellFormed(token.text, copy).data() == token.text.data()) pattern_.ReplaceAll(token.text, content_, scratch);
    }
  }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

// At most so many of `content` from each end.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(std::vector<DecodedToken>& tokens) const override {
    for (DecodedToken& token : tokens) {
      absl::string_view text = token.text;
      for (int64_t i = 0; i < start_ && absl::StartsWith(text, content_); ++i) text.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && absl::EndsWith(text, content_); ++i) text.remove_suffix(content_.size());
      token.text = std::string(text);
    }
  }

 private:
  const std::string content_;
  const int64_t start_, stop_;
};

class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(Metaspace metaspace) : metaspace_(std::move(metaspace)) {}
  void Apply(std::vector<DecodedToken>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool was_prepended = i == 0 && metaspace_.prepend != Metaspace::Prepend::kNever;
      absl::StrReplaceAll({{metaspace_.replacement, was_prepended ? "" : " "}}, &tokens[i].text);
    }
  }

 private:
  const Metaspace metaspace_;
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void Apply(std::vector<DecodedToken>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& text = tokens[i].text;
      if (i > 0) text = absl::StartsWith(text, prefix_) ? text.substr(prefix_.size()) : " " + text;
      if (cleanup_) CleanUp(text);
    }
  }

 private:
  // English, as BERT's makers print it. One after the other: what one leaves, the next may find.
  static void CleanUp(std::string& text) {
    constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) absl::StrReplaceAll({{from, to}}, &text);
  }

  const std::string prefix_;
  const bool cleanup_;
};

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void Apply(std::vector<DecodedToken>& tokens) const override {
    for (const auto& step : steps_) step->Apply(tokens);
  }

 private:
  const std::vector<std::unique_ptr<Decoder>> steps_;
};

Made MakeReplace(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "pattern", "content"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  EPS_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::FromJson(pattern_node));
  EPS_ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content));
}

absl::StatusOr<int64_t> CountOf(const JsonNode& node, absl::string_view key) {
  EPS_ASSIGN_OR_RETURN(const JsonNode count, node.Get(key));
  return count.Integer(0, 1000);
}

Made MakeStrip(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "content", "start", "stop"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode content_node, node.Get("content"));
  EPS_ASSIGN_OR_RETURN(std::string content, content_node.String());
  if (content.empty() || FirstOf(content).num_bytes != content.size()) return content_node.Bad("one character");
  EPS_ASSIGN_OR_RETURN(const int64_t start, CountOf(node, "start"));
  EPS_ASSIGN_OR_RETURN(const int64_t stop, CountOf(node, "stop"));
  return std::make_unique<StripDecoder>(std::move(content), start, stop);
}

Made MakeMetaspace(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(Metaspace metaspace, MetaspaceFromJson(node));
  return std::make_unique<MetaspaceDecoder>(std::move(metaspace));
}

Made MakeWordPiece(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "prefix", "cleanup"}));
  EPS_ASSIGN_OR_RETURN(std::string prefix, node.StringOr("prefix", "##"));
  EPS_ASSIGN_OR_RETURN(const bool cleanup, node.FlagOr("cleanup", true));
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}

Made MakeSequence(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "decoders"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode list, node.Get("decoders"));
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<std::unique_ptr<Decoder>> steps;
  for (const JsonNode& element : elements) {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> step, DecoderFromJson(element));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceDecoder>(std::move(steps));
}

template <typename T>
Made MakeSimple(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type"}));
  return std::make_unique<T>();
}

}  // namespace

Made DecoderFromJson(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(const JsonNode type_node, node.Get("type"));
  EPS_ASSIGN_OR_RETURN(const std::string type, type_node.String());
  if (type == "ByteLevel") {  // its keys are the pre-tokenizer's, which mean nothing here
    EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "ByteFallback") return MakeSimple<ByteFallbackDecoder>(node);
  if (type == "Fuse") return MakeSimple<FuseDecoder>(node);
  if (type == "Replace") return MakeReplace(node);
  if (type == "Strip") return MakeStrip(node);
  if (type == "Metaspace") return MakeMetaspace(node);
  if (type == "WordPiece") return MakeWordPiece(node);
  if (type == "Sequence") return MakeSequence(node);
  return type_node.Bad("ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece or Sequence");
}

}  // namespace eps
