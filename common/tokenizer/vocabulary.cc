#include "common/tokenizer/vocabulary.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace eps {

absl::Status Vocabulary::Add(absl::string_view spelling, int32_t id) {
  const auto shown = [](absl::string_view text) { return absl::CHexEscape(text.substr(0, 80)); };
  if (id < 0 || id > kMaxId) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", shown(spelling), "\" has the id ", id, ", must be 0 to ", kMaxId));
  }
  const auto [it, is_new] = ids_.try_emplace(std::string(spelling), id);
  if (!is_new && it->second != id) {
    return absl::InvalidArgumentError(absl::StrCat("\"", shown(spelling), "\" has two ids, ", it->second, " and ", id));
  }
  if (!is_new) return absl::OkStatus();
  const auto at = static_cast<size_t>(id);
  if (id >= num_ids()) {
    by_id_.resize(at + 1);
    is_there_.resize(at + 1);
  }
  if (is_there_[at]) {
    return absl::InvalidArgumentError(
        absl::StrCat("id ", id, " is of two tokens, \"", shown(by_id_[at]), "\" and \"", shown(spelling), "\""));
  }
  is_there_[at] = true;
  by_id_[at] = std::string(spelling);
  return absl::OkStatus();
}

std::optional<int32_t> Vocabulary::Find(absl::string_view spelling) const {
  const auto it = ids_.find(spelling);
  return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

const std::string& Vocabulary::Spelling(int32_t id) const {
  static const std::string& none = *new std::string;
  return Has(id) ? by_id_[static_cast<size_t>(id)] : none;
}

}  // namespace eps
