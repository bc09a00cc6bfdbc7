#include "common/tokenizer/pre_tokenizer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/metaspace.h"
#include "common/tokenizer/splitter.h"
#include "common/tokenizer/text_pattern.h"

namespace eps {
namespace {

using Made = absl::StatusOr<std::unique_ptr<PreTokenizer>>;

// Of GPT-2: English contractions, then words, numbers and other signs, each with the space in front of it.
constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The signs of ASCII count whatever Unicode says of them: $ is a currency, ^ a modifier.
constexpr char kPunctuation[] = R"([!-/:-@\[-`{-~\p{P}])";

// Split, and all that differ from it by a fixed pattern only: each splitter cuts what the one before it leaves.
class SplitPreTokenizer : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(std::vector<Splitter> splitters) : splitters_(std::move(splitters)) {}
  void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const override { CutBy(0, piece, scratch, sink); }

 private:
  void CutBy(size_t i, Piece piece, PatternScratch& scratch, PieceSink sink) const {
    if (i + 1 == splitters_.size()) return splitters_[i].Cut(piece, scratch, sink);
    splitters_[i].Cut(piece, scratch, [&](Piece part) { CutBy(i + 1, part, scratch, sink); });
  }

  const std::vector<Splitter> splitters_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<Splitter> splitter)
      : add_prefix_space_(add_prefix_space), splitter_(std::move(splitter)) {}

  void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const override {
    std::string prefixed;
    if (add_prefix_space_ && piece.text[0] != ' ') {
      prefixed = absl::StrCat(" ", piece.text);
      piece.text = prefixed;
    }
    if (splitter_) return splitter_->Cut(piece, scratch, sink);
    sink(piece);
  }
  bool IsByteLevel() const override { return true; }

 private:
  const bool add_prefix_space_;
  const std::optional<Splitter> splitter_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace metaspace)
      : metaspace_(std::move(metaspace)),
        splitter_(TextPattern::Literal(metaspace_.replacement), SplitBehavior::kMergedWithNext, false) {}

  void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const override {
    const std::string marked = Mark(piece);
    const Piece whole{marked, piece.at_start};
    if (metaspace_.split) return splitter_.Cut(whole, scratch, sink);
    sink(whole);
  }

 private:
  std::string Mark(Piece piece) const {
    std::string marked;
    marked.reserve(piece.text.size() * 3 / 2);
    for (const char c : piece.text) {
      if (c == ' ') {
        marked += metaspace_.replacement;
      } else {
        marked += c;
      }
    }
    const bool prepends = metaspace_.prepend == Metaspace::Prepend::kAlways ||
                          (metaspace_.prepend == Metaspace::Prepend::kFirst && piece.at_start);
    if (prepends && !absl::StartsWith(marked, metaspace_.replacement)) marked.insert(0, metaspace_.replacement);
    return marked;
  }

  const Metaspace metaspace_;
  const Splitter splitter_;
};

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const override { CutBy(0, piece, scratch, sink); }
  bool IsByteLevel() const override { return !steps_.empty() && steps_.back()->IsByteLevel(); }

 private:
  void CutBy(size_t i, Piece piece, PatternScratch& scratch, PieceSink sink) const {
    if (i == steps_.size()) return sink(piece);
    steps_[i]->Cut(piece, scratch, [&](Piece part) { CutBy(i + 1, part, scratch, sink); });
  }

  const std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

absl::StatusOr<Splitter> FixedSplitter(absl::string_view regex, SplitBehavior behavior) {
  EPS_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Regex(regex));
  return Splitter(std::move(pattern), behavior, /*inverted=*/false);
}

struct FixedPattern {
  absl::string_view regex;
  SplitBehavior behavior;
};

Made MakeFixed(const std::vector<FixedPattern>& patterns) {
  std::vector<Splitter> splitters;
  for (const FixedPattern& pattern : patterns) {
    EPS_ASSIGN_OR_RETURN(Splitter splitter, FixedSplitter(pattern.regex, pattern.behavior));
    splitters.push_back(std::move(splitter));
  }
  return std::make_unique<SplitPreTokenizer>(std::move(splitters));
}

Made MakeFixed(const JsonNode& node, const std::vector<FixedPattern>& patterns) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type"}));
  return MakeFixed(patterns);
}

Made MakeSplit(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "pattern", "behavior", "invert"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  EPS_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::FromJson(pattern_node));
  EPS_ASSIGN_OR_RETURN(const JsonNode behavior_node, node.Get("behavior"));
  EPS_ASSIGN_OR_RETURN(const SplitBehavior behavior, SplitBehaviorFromJson(behavior_node));
  EPS_ASSIGN_OR_RETURN(const bool inverted, node.FlagOr("invert", false));
  std::vector<Splitter> splitters;
  splitters.emplace_back(std::move(pattern), behavior, inverted);
  return std::make_unique<SplitPreTokenizer>(std::move(splitters));
}

// trim_offsets is about where tokens stand in the text, which nobody asks for here.
Made MakeByteLevel(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  EPS_ASSIGN_OR_RETURN(const bool add_prefix_space, node.Flag("add_prefix_space"));
  EPS_ASSIGN_OR_RETURN(const bool use_regex, node.FlagOr("use_regex", true));
  if (!use_regex) return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::nullopt);
  EPS_ASSIGN_OR_RETURN(Splitter splitter, FixedSplitter(kGpt2Pattern, SplitBehavior::kIsolated));
  return std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(splitter));
}

Made MakeMetaspace(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(Metaspace metaspace, MetaspaceFromJson(node));
  return std::make_unique<MetaspacePreTokenizer>(std::move(metaspace));
}

Made MakeDigits(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "individual_digits"}));
  EPS_ASSIGN_OR_RETURN(const bool individual, node.FlagOr("individual_digits", false));
  return MakeFixed({{R"(\p{N})", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous}});
}

Made MakePunctuation(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "behavior"}));
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (const std::optional<JsonNode> behavior_node = node.Find("behavior")) {
    EPS_ASSIGN_OR_RETURN(behavior, SplitBehaviorFromJson(*behavior_node));
  }
  return MakeFixed({{kPunctuation, behavior}});
}

Made MakeSequence(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "pretokenizers"}));
  EPS_ASSIGN_OR_RETURN(const JsonNode list, node.Get("pretokenizers"));
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (const JsonNode& element : elements) {
    if (!steps.empty() && steps.back()->IsByteLevel()) return element.Bad("absent: nothing may follow ByteLevel");
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> step, PreTokenizerFromJson(element));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

}  // namespace

Made PreTokenizerFromJson(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(const JsonNode type_node, node.Get("type"));
  EPS_ASSIGN_OR_RETURN(const std::string type, type_node.String());
  if (type == "ByteLevel") return MakeByteLevel(node);
  if (type == "Split") return MakeSplit(node);
  if (type == "Metaspace") return MakeMetaspace(node);
  if (type == "Digits") return MakeDigits(node);
  if (type == "Punctuation") return MakePunctuation(node);
  if (type == "Sequence") return MakeSequence(node);
  if (type == "BertPreTokenizer") {
    return MakeFixed(node, {{R"(\s)", SplitBehavior::kRemoved}, {kPunctuation, SplitBehavior::kIsolated}});
  }
  if (type == "Whitespace") {
    // \w as Rust's, which has the two joiners, and not all that Oniguruma's has
    constexpr char kWords[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)";
    return MakeFixed(node, {{R"(\s)", SplitBehavior::kRemoved}, {kWords, SplitBehavior::kIsolated}});
  }
  if (type == "WhitespaceSplit") return MakeFixed(node, {{R"(\s)", SplitBehavior::kRemoved}});
  return type_node.Bad(
      "ByteLevel, Split, Metaspace, BertPreTokenizer, Digits, Punctuation, Whitespace, WhitespaceSplit or Sequence");
}

}  // namespace eps
