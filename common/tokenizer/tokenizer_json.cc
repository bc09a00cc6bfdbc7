#include "common/tokenizer/tokenizer_json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/json_text.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/bpe_model.h"
#include "common/tokenizer/class_overrides.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/vocabulary.h"
#include "common/tokenizer/wordpiece_model.h"

namespace eps {
namespace {

constexpr int kMaxDepth = 32;

using TokenIds = absl::flat_hash_set<int32_t>;

absl::Status AddVocab(const JsonNode& model, Vocabulary& vocabulary) {
  EPS_ASSIGN_OR_RETURN(const JsonNode vocab, model.Get("vocab"));
  if (!vocab.value().is_object()) return vocab.Bad("an object of tokens and their ids");
  for (const auto& [spelling, id] : vocab.value().items()) {
    if (!id.is_number_integer() || id < 0 || id > Vocabulary::kMaxId) {
      return absl::InvalidArgumentError(absl::StrCat(vocab.where(), ": the id of \"", spelling.substr(0, 80),
                                                     "\" must be a whole number from 0 to ", Vocabulary::kMaxId));
    }
    EPS_RETURN_IF_ERROR_WITH(vocabulary.Add(spelling, id.get<int32_t>()), vocab.where());
  }
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> AddedTokenFromJson(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"id", "content", "special", "normalized", "lstrip", "rstrip", "single_word"}));
  AddedToken token;
  EPS_ASSIGN_OR_RETURN(const JsonNode id, node.Get("id"));
  EPS_ASSIGN_OR_RETURN(const int64_t number, id.Integer(0, Vocabulary::kMaxId));
  token.id = static_cast<int32_t>(number);
  EPS_ASSIGN_OR_RETURN(const JsonNode content, node.Get("content"));
  EPS_ASSIGN_OR_RETURN(token.content, content.String());
  if (token.content.empty()) return content.Bad("not empty");
  EPS_ASSIGN_OR_RETURN(token.special, node.FlagOr("special", false));
  EPS_ASSIGN_OR_RETURN(token.normalized, node.FlagOr("normalized", !token.special));
  EPS_ASSIGN_OR_RETURN(token.lstrip, node.FlagOr("lstrip", false));
  EPS_ASSIGN_OR_RETURN(token.rstrip, node.FlagOr("rstrip", false));
  EPS_ASSIGN_OR_RETURN(token.single_word, node.FlagOr("single_word", false));
  return token;
}

absl::StatusOr<std::vector<AddedToken>> AddedTokensFromJson(const JsonNode& root, Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  const std::optional<JsonNode> list = root.Find("added_tokens");
  if (!list) return tokens;
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list->Elements());
  for (const JsonNode& element : elements) {
    EPS_ASSIGN_OR_RETURN(AddedToken token, AddedTokenFromJson(element));
    token.in_model = vocabulary.Has(token.id);
    EPS_RETURN_IF_ERROR_WITH(vocabulary.Add(token.content, token.id), element.where());
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// "a b", or ["a", "b"] in files since 2024.
absl::StatusOr<std::pair<std::string, std::string>> MergeFromJson(const JsonNode& node) {
  if (node.value().is_string()) {
    const std::string text = node.value().get<std::string>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos) {
      return node.Bad("two tokens with one space between them");
    }
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, node.Elements());
  if (pair.size() != 2) return node.Bad("two tokens");
  EPS_ASSIGN_OR_RETURN(std::string left, pair[0].String());
  EPS_ASSIGN_OR_RETURN(std::string right, pair[1].String());
  return std::pair(std::move(left), std::move(right));
}

// Of another way to merge, where it is asked for.
absl::Status RequireAbsentOrEmpty(const JsonNode& model, absl::string_view key) {
  const std::optional<JsonNode> node = model.Find(key);
  const bool is_empty =
      node && (node->value().is_string() ? node->value().get_ref<const std::string&>().empty()
                                         : node->value().is_number() && node->value().get<double>() == 0);
  if (!node || is_empty) return absl::OkStatus();
  return node->Bad("absent, null or empty: it is not supported");
}

absl::StatusOr<std::optional<int32_t>> UnkOf(const JsonNode& model, const Vocabulary& vocabulary) {
  const std::optional<JsonNode> node = model.Find("unk_token");
  if (!node) return std::nullopt;
  EPS_ASSIGN_OR_RETURN(const std::string unk, node->String());
  const std::optional<int32_t> id = vocabulary.Find(unk);
  if (!id) return node->Bad("a token of vocab");
  return id;
}

absl::StatusOr<std::unique_ptr<TokenModel>> BpeFromJson(const JsonNode& model, const Vocabulary& vocabulary,
                                                        const TokenIds& apart, bool byte_level) {
  EPS_RETURN_IF_ERROR(model.OnlyKeys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                      "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    EPS_RETURN_IF_ERROR(RequireAbsentOrEmpty(model, key));
  }
  BpeModel::Options options;
  options.vocabulary = &vocabulary;
  options.apart = apart;
  options.byte_level = byte_level;
  EPS_ASSIGN_OR_RETURN(options.byte_fallback, model.FlagOr("byte_fallback", false));
  EPS_ASSIGN_OR_RETURN(options.ignore_merges, model.FlagOr("ignore_merges", false));
  EPS_ASSIGN_OR_RETURN(options.fuse_unk, model.FlagOr("fuse_unk", false));
  EPS_ASSIGN_OR_RETURN(options.unk, UnkOf(model, vocabulary));
  EPS_ASSIGN_OR_RETURN(const JsonNode list, model.Get("merges"));
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> merges, list.Elements());
  options.merges.reserve(merges.size());
  for (const JsonNode& node : merges) {
    EPS_ASSIGN_OR_RETURN(auto merge, MergeFromJson(node));
    options.merges.push_back(std::move(merge));
  }
  absl::StatusOr<std::unique_ptr<BpeModel>> made = BpeModel::Create(options);
  if (!made.ok()) return Annotate(made.status(), model.where());
  return *std::move(made);
}

absl::StatusOr<std::unique_ptr<TokenModel>> WordPieceFromJson(const JsonNode& model, const Vocabulary& vocabulary,
                                                              const TokenIds& apart) {
  EPS_RETURN_IF_ERROR(
      model.OnlyKeys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}));
  WordPieceModel::Options options;
  options.vocabulary = &vocabulary;
  options.apart = apart;
  EPS_ASSIGN_OR_RETURN(const std::string unk, model.StringOr("unk_token", "[UNK]"));
  const std::optional<int32_t> unk_id = vocabulary.Find(unk);
  if (!unk_id) {
    return absl::InvalidArgumentError(absl::StrCat(model.where(), ".unk_token: \"", unk, "\" is not in vocab"));
  }
  options.unk = *unk_id;
  EPS_ASSIGN_OR_RETURN(options.continuing_prefix, model.StringOr("continuing_subword_prefix", "##"));
  if (const std::optional<JsonNode> most = model.Find("max_input_chars_per_word")) {
    EPS_ASSIGN_OR_RETURN(options.max_characters, most->Integer(1, 1 << 20));
  }
  return std::make_unique<WordPieceModel>(options);
}

// Files before 2021 do not name it.
absl::StatusOr<std::string> ModelType(const JsonNode& model) {
  if (model.Find("type")) return model.String("type");
  if (model.Find("merges")) return "BPE";
  return model.String("type");
}

absl::StatusOr<std::unique_ptr<TokenModel>> ModelFromJson(const JsonNode& model, const Vocabulary& vocabulary,
                                                          const TokenIds& apart, bool byte_level) {
  EPS_ASSIGN_OR_RETURN(const std::string type, ModelType(model));
  if (type == "BPE") return BpeFromJson(model, vocabulary, apart, byte_level);
  if (type == "WordPiece") {
    if (byte_level) return model.Bad("a BPE model, as the pre_tokenizer is ByteLevel");
    return WordPieceFromJson(model, vocabulary, apart);
  }
  EPS_ASSIGN_OR_RETURN(const JsonNode type_node, model.Get("type"));
  return type_node.Bad("BPE or WordPiece");
}

// "": there is none.
std::string StringAt(const nlohmann::json& value, const char* place) {
  const nlohmann::json::json_pointer pointer(place);
  if (!value.contains(pointer) || !value.at(pointer).is_string()) return "";
  return value.at(pointer).get<std::string>();
}

// It puts tokens around a text, or moves offsets, and neither is wanted here; but what it puts in front is told.
absl::Status ReadPostProcessor(const JsonNode& node, std::optional<std::string>& put_in_front) {
  EPS_ASSIGN_OR_RETURN(const JsonNode type_node, node.Get("type"));
  EPS_ASSIGN_OR_RETURN(const std::string type, type_node.String());
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "TemplateProcessing") {
    put_in_front = StringAt(node.value(), "/single/0/SpecialToken/id");
    return absl::OkStatus();
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    put_in_front = StringAt(node.value(), "/cls/0");
    return absl::OkStatus();
  }
  if (type != "Sequence") {
    return type_node.Bad("TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing or Sequence");
  }
  EPS_ASSIGN_OR_RETURN(const JsonNode list, node.Get("processors"));
  EPS_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  for (const JsonNode& element : elements) EPS_RETURN_IF_ERROR(ReadPostProcessor(element, put_in_front));
  return absl::OkStatus();
}

absl::Status CheckVersion(const JsonNode& root) {
  EPS_ASSIGN_OR_RETURN(const std::string version, root.StringOr("version", "1.0"));
  if (version == "1.0") return absl::OkStatus();
  return root.Find("version")->Bad("\"1.0\"");
}

std::string FingerprintOf(absl::string_view text) {
  return Sha256Hex(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(absl::string_view text, absl::string_view config) {
  EPS_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(text, kMaxDepth));
  const JsonNode root(document);
  EPS_RETURN_IF_ERROR(root.OnlyKeys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                                     "post_processor", "decoder", "model"}));
  EPS_RETURN_IF_ERROR(CheckVersion(root));
  PipelineTokenizer::Parts parts;
  if (const auto node = root.Find("normalizer")) {
    EPS_ASSIGN_OR_RETURN(parts.normalizer, NormalizerFromJson(*node));
  }
  if (const auto node = root.Find("pre_tokenizer")) {
    EPS_ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizerFromJson(*node));
  }
  EPS_RETURN_IF_ERROR(CheckClassOverrides(root, config));
  if (const auto node = root.Find("post_processor")) {
    EPS_RETURN_IF_ERROR(ReadPostProcessor(*node, parts.put_in_front));
  }
  if (const auto node = root.Find("decoder")) {
    EPS_ASSIGN_OR_RETURN(parts.decoder, DecoderFromJson(*node));
  }
  EPS_ASSIGN_OR_RETURN(const JsonNode model, root.Get("model"));
  parts.vocabulary = std::make_unique<Vocabulary>();
  EPS_RETURN_IF_ERROR(AddVocab(model, *parts.vocabulary));
  EPS_ASSIGN_OR_RETURN(parts.added, AddedTokensFromJson(root, *parts.vocabulary));
  TokenIds apart;
  for (const AddedToken& token : parts.added) {
    if (token.special || !token.in_model) apart.insert(token.id);
  }
  const bool byte_level = parts.pre_tokenizer != nullptr && parts.pre_tokenizer->IsByteLevel();
  EPS_ASSIGN_OR_RETURN(parts.model, ModelFromJson(model, *parts.vocabulary, apart, byte_level));
  parts.fingerprint = FingerprintOf(text);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace eps
