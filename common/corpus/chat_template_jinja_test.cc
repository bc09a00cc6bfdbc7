#include "common/corpus/chat_template_jinja.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "common/corpus/chat_template_markup.h"
#include "common/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

// Whether a renderer makes of them what ChatTemplate::Encode encodes is tests/system/finetune_test.py's matter.
namespace eps {
namespace {

std::string Jinja(const std::string& name, const std::string& end_of_text = "") {
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const ChatMarkup& markup = **FindChatMarkup(name, *tokenizer);
  return ChatTemplateJinja(markup, markup.first_token, end_of_text);
}

TEST(ChatTemplateJinjaTest, EachRoleHasItsMarkupAndAnAnswerIsAskedForByItsHeading) {
  EXPECT_EQ(Jinja("llama3"), R"({{- '<|begin_of_text|>' }}
{%- for message in messages %}
{%- set content = message['content'] | trim %}
{%- if message['role'] == 'user' %}
{{- '<|start_header_id|>user<|end_header_id|>\n\n' + content + '<|eot_id|>' }}
{%- elif message['role'] == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + content + '<|eot_id|>' }}
{%- elif message['role'] == 'assistant' %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' + content + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- content + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %})");
}

TEST(ChatTemplateJinjaTest, TheSystemsWordsStandInTheUsersTurnWhereTheMarkupPutsThem) {
  const std::string first = Jinja("llama2");
  EXPECT_TRUE(absl::StrContains(first, "{%- if messages[0]['role'] == 'system' %}{%- set ns.system = 1 %}")) << first;
  EXPECT_TRUE(absl::StrContains(first, R"({%- set content = ('<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n')"))
      << first;
  EXPECT_TRUE(absl::StrContains(first, "{{- '<s>' + '[INST] ' + content + ' [/INST]' }}")) << first;
}

TEST(ChatTemplateJinjaTest, ASystemMessageThatIsAlwaysThereIsWrittenWhereTheMessagesHaveNone) {
  EXPECT_TRUE(absl::StrContains(
      Jinja("qwen25"),
      R"({%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\n' + 'You are Qwen, created by Alibaba Cloud)"));
}

TEST(ChatTemplateJinjaTest, AnAnswerOfPlainEndsWithTheEndOfTextOrABlankLine) {
  EXPECT_TRUE(absl::StrContains(Jinja("plain", "<|end|>"), R"('### Assistant:\n' + content + '<|end|>' }})"));
  const std::string blank = Jinja("plain");
  EXPECT_TRUE(absl::StrContains(blank, R"('### Assistant:\n' + content + '\n\n' }})"));
  // Which stands for what else is between two turns.
  EXPECT_TRUE(absl::StrContains(blank, "not loop.first and messages[loop.index0 - 1]['role'] != 'assistant'"));
}

TEST(ChatTemplateJinjaTest, AnEndOfTextThatWouldEndAStringIsAPartOfIt) {
  EXPECT_TRUE(absl::StrContains(Jinja("plain", R"(<'\>)"), R"(content + '<\'\\>' }})"));
}

}  // namespace
}  // namespace eps
