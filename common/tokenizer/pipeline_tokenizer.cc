#include "common/tokenizer/pipeline_tokenizer.h"

#include <utility>

#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr uint8_t kAdded = 1, kSpecial = 2;
// More than that is let go: of a piece of megabytes, which a tokenizer without a pre-tokenizer makes of a text.
constexpr size_t kMaxKeptSymbols = size_t{1} << 20;

}  // namespace

PipelineTokenizer::PipelineTokenizer(Parts parts) : parts_(std::move(parts)) {
  kinds_.resize(static_cast<size_t>(vocab()));
  for (const AddedToken& token : parts_.added) {
    AddTo(all_, token);
    if (token.special) {
      specials_.Add(token, token.content);
    } else {
      AddTo(without_specials_, token);
    }
    kinds_[static_cast<size_t>(token.id)] = static_cast<uint8_t>(token.special ? kAdded | kSpecial : kAdded);
  }
}

void PipelineTokenizer::AddTo(Finders& finders, const AddedToken& token) const {
  if (!token.normalized) return finders.plain.Add(token, token.content);
  std::string spelling = token.content;
  PatternScratch scratch;
  if (parts_.normalizer != nullptr) parts_.normalizer->Apply(spelling, scratch);
  finders.normalized.Add(token, spelling);
}

std::vector<int32_t> PipelineTokenizer::Encode(absl::string_view text, Specials specials) const {
  const Finders& finders = specials == Specials::kAsTokens ? all_ : without_specials_;
  std::string copy;
  const absl::string_view whole = WellFormed(text, copy);
  std::unique_ptr<Scratch> scratch = scratches_.Take();
  std::vector<int32_t> ids;
  finders.plain.ForEachPart(whole, [&](AddedTokenFinder::Part part) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      EncodePart({part.text, part.text.data() == whole.data()}, finders, *scratch, ids);
    }
  });
  if (scratch->model.ids.capacity() <= kMaxKeptSymbols) scratches_.GiveBack(std::move(scratch));
  return ids;
}

void PipelineTokenizer::EncodePart(Piece part, const Finders& finders, Scratch& scratch,
                                   std::vector<int32_t>& ids) const {
  if (parts_.normalizer != nullptr) {
    scratch.normalized.assign(part.text.data(), part.text.size());
    parts_.normalizer->Apply(scratch.normalized, scratch.pattern);
    part.text = scratch.normalized;
  }
  const absl::string_view whole = part.text;
  finders.normalized.ForEachPart(whole, [&](AddedTokenFinder::Part found) {
    if (found.id >= 0) {
      ids.push_back(found.id);
    } else {
      EncodeNormalized({found.text, part.at_start && found.text.data() == whole.data()}, scratch, ids);
    }
  });
}

void PipelineTokenizer::EncodeNormalized(Piece part, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (parts_.pre_tokenizer == nullptr) return parts_.model->Tokenize(part.text, scratch.model, ids);
  parts_.pre_tokenizer->Cut(part, scratch.pattern,
                            [&](Piece piece) { parts_.model->Tokenize(piece.text, scratch.model, ids); });
}

bool PipelineTokenizer::PutsInFront(absl::string_view token) const {
  if (parts_.put_in_front) return *parts_.put_in_front == token;
  // Those of GPT-2 and Qwen2 put nothing there. Those of Llama do, often by their class instead of the file, and the first
  // files of Llama 3 left it out.
  const bool is_byte_level = parts_.pre_tokenizer != nullptr && parts_.pre_tokenizer->IsByteLevel();
  return !is_byte_level || token == "<|begin_of_text|>";
}

bool PipelineTokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab() && (kinds_[static_cast<size_t>(id)] & kSpecial) != 0;
}

std::string PipelineTokenizer::Decode(absl::Span<const int32_t> ids, bool skip_specials) const {
  std::vector<DecodedToken> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (!parts_.vocabulary->Has(id)) continue;
    const uint8_t kind = kinds_[static_cast<size_t>(id)];
    if (skip_specials && IsSpecial(id)) continue;
    tokens.push_back({parts_.vocabulary->Spelling(id), (kind & kAdded) != 0});
  }
  if (parts_.decoder != nullptr) parts_.decoder->Apply(tokens);
  std::string text;
  for (const DecodedToken& token : tokens) {
    if (parts_.decoder == nullptr && !text.empty()) text += ' ';
    text += token.text;
  }
  return text;
}

}  // namespace eps
