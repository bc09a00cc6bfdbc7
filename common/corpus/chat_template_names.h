#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_NAMES_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_NAMES_H_

#include "absl/strings/string_view.h"

namespace eps {

// Of all that ChatTemplate knows, as chat_template_markup.cc makes sure; beside them "auto" asks for a choice (chat_template_choice.h).
inline constexpr absl::string_view kChatTemplateNames[] = {"llama3", "llama31", "chatml", "qwen25",
                                                           "qwen3",  "mistral", "llama2", "plain"};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_NAMES_H_
