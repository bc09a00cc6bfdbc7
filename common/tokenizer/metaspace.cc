#include "common/tokenizer/metaspace.h"

#include <optional>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

absl::StatusOr<Metaspace::Prepend> PrependFromJson(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(const bool add_prefix_space, node.FlagOr("add_prefix_space", true));
  const std::optional<JsonNode> scheme_node = node.Find("prepend_scheme");
  if (!scheme_node) return add_prefix_space ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
  EPS_ASSIGN_OR_RETURN(const std::string scheme, scheme_node->String());
  if (!add_prefix_space && scheme != "never") return scheme_node->Bad("never, as add_prefix_space is false");
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  return scheme_node->Bad("always, first or never");
}

}  // namespace

absl::StatusOr<Metaspace> MetaspaceFromJson(const JsonNode& node) {
  // str_rep repeats the replacement in old files.
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"}));
  Metaspace metaspace;
  EPS_ASSIGN_OR_RETURN(metaspace.replacement, node.String("replacement"));
  if (metaspace.replacement.empty() || FirstOf(metaspace.replacement).num_bytes != metaspace.replacement.size()) {
    EPS_ASSIGN_OR_RETURN(const JsonNode replacement, node.Get("replacement"));
    return replacement.Bad("one character");
  }
  EPS_ASSIGN_OR_RETURN(metaspace.prepend, PrependFromJson(node));
  EPS_ASSIGN_OR_RETURN(metaspace.split, node.FlagOr("split", true));
  return metaspace;
}

}  // namespace eps
