#include "common/tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/text_pattern.h"
#include "common/tokenizer/unicode_text.h"

namespace eps {
namespace {

using Made = absl::StatusOr<std::unique_ptr<Normalizer>>;

class FormNormalizer : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void Apply(std::string& text, PatternScratch&) const override { ToNormalForm(form_, text); }

 private:
  const NormalForm form_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void Apply(std::string& text, PatternScratch&) const override { ToLower(text); }
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void Apply(std::string& text, PatternScratch&) const override { RemoveMarks(text); }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void Apply(std::string& text, PatternScratch&) const override {
    size_t begin = 0, end = 0;
    bool in_front = left_;
    for (size_t at = 0; at < text.size();) {
      const bool is_space = IsWhiteSpace(NextCodePoint(text, at));
      if (in_front && is_space) begin = at;
      in_front = in_front && is_space;
      if (!is_space) end = at;
    }
    if (right_) text.resize(std::max(begin, end));
    text.erase(0, begin);
  }

 private:
  const bool left_, right_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::string& text, PatternScratch& scratch) const override {
    pattern_.ReplaceAll(text, content_, scratch);
  }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(std::string& text, PatternScratch&) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  const std::string prefix_;
};

// Of BERT: Chinese ideographs are words of their own, other signs are cleaned, case and accents taken away.
class BertNormalizer : public Normalizer {
 public:
  struct Options {
    bool clean, ideographs, strip_accents, lowercase;
  };
  explicit BertNormalizer(Options options) : options_(options) {}

  void Apply(std::string& text, PatternScratch&) const override {
    if (options_.clean) Clean(text);
    if (options_.ideographs) SpaceIdeographs(text);
    if (options_.strip_accents) {
      ToNormalForm(NormalForm::kNfd, text);
      RemoveNonspacingMarks(text);
    }
    if (options_.lowercase) ToLower(text);
  }

 private:
  static void Clean(std::string& text) {
    constexpr char32_t kReplacement = 0xFFFD;
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const char32_t c = NextCodePoint(text, at);
      if (c == kReplacement || IsBertControl(c)) continue;
      AppendUtf8(IsWhiteSpace(c) ? U' ' : c, out);
    }
    text = std::move(out);
  }

  static void SpaceIdeographs(std::string& text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const char32_t c = NextCodePoint(text, at);
      const bool is_word = IsBertIdeograph(c);
      if (is_word) out += ' ';
      AppendUtf8(c, out);
      if (is_word) out += ' ';
    }
    text = std::move(out);
  }

  const Options options_;
};

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void Apply(std::string& text, PatternScratch& scratch) const override {
    for (const auto& step : steps_) step->Apply(text, scratch);
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

Made MakeForm(const JsonNode& node, NormalForm form) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type"}));
  return std::make_unique<FormNormalizer>(form);
}

Made MakeStrip(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "strip_left", "strip_right"}));
  EPS_ASSIGN_OR_RETURN(const bool left, node.Flag("strip_left"));
  EPS_ASSIGN_OR_RETURN(const bool right, node.Flag("strip_right"));
  return std::make_unique<StripNormalizer>(left, right);
}

Made MakeReplace(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "pattern", "content"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  EPS_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::FromJson(pattern_node));
  EPS_ASSIGN_OR_RETURN(std::string content, node.String("content"));
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}

Made MakePrepend(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "prepend"}));
  EPS_ASSIGN_OR_RETURN(std::string prefix, node.String("prepend"));
  return std::make_unique<PrependNormalizer>(std::move(prefix));
}

Made MakeBert(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"}));
  BertNormalizer::Options options;
  EPS_ASSIGN_OR_RETURN(options.clean, node.FlagOr("clean_text", true));
  EPS_ASSIGN_OR_RETURN(options.ideographs, node.FlagOr("handle_chinese_chars", true));
  EPS_ASSIGN_OR_RETURN(options.lowercase, node.FlagOr("lowercase", true));
  EPS_ASSIGN_OR_RETURN(options.strip_accents, node.FlagOr("strip_accents", options.lowercase));
  return std::make_unique<BertNormalizer>(options);
}

Made MakeSequence(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "normalizers"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode list, node.Get("normalizers"));
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const JsonNode& element : elements) {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step, NormalizerFromJson(element));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

template <typename T>
Made MakeSimple(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type"}));
  return std::make_unique<T>();
}

}  // namespace

Made NormalizerFromJson(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(const JsonNode type_node, node.Get("type"));
  EPS_ASSIGN_OR_RETURN(const std::string type, type_node.String());
  if (type == "NFC") return MakeForm(node, NormalForm::kNfc);
  if (type == "NFD") return MakeForm(node, NormalForm::kNfd);
  if (type == "NFKC") return MakeForm(node, NormalForm::kNfkc);
  if (type == "NFKD") return MakeForm(node, NormalForm::kNfkd);
  if (type == "Lowercase") return MakeSimple<LowercaseNormalizer>(node);
  if (type == "StripAccents") return MakeSimple<StripAccentsNormalizer>(node);
  if (type == "Strip") return MakeStrip(node);
  if (type == "Replace") return MakeReplace(node);
  if (type == "Prepend") return MakePrepend(node);
  if (type == "BertNormalizer") return MakeBert(node);
  if (type == "Sequence") return MakeSequence(node);
  return type_node.Bad(
      "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, BertNormalizer or Sequence");
}

}  // namespace eps
