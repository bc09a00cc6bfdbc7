#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_JINJA_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_JINJA_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/corpus/chat_template_markup.h"

namespace eps {

// The markup as a template that transformers, vLLM and llama.cpp take (chat_template.jinja): what it renders of a
// conversation is the text whose tokens ChatTemplate::Encode gives, first token and all, and with add_generation_prompt
// what stands before an answer. What the messages say is trusted as it is, as in every template of Jinja.
//
// Of markup with thoughts it is without those of answers, but with a last one that is empty where enable_thinking is
// false: the model's own template says more.
//
// first_token: the spelling of the document's, "": none. end_of_text: of the token that ends an answer where the markup
// has none; "": none
std::string ChatTemplateJinja(const ChatMarkup& markup, absl::string_view first_token, absl::string_view end_of_text);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_JINJA_H_
