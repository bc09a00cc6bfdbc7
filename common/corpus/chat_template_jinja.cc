#include "common/corpus/chat_template_jinja.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace eps {
namespace {

constexpr absl::string_view kBlankLine = "\n\n";

// A string of Jinja.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}, {"\n", "\\n"}}), "'");
}

// Prints the parts, of which empty strings are left out.
std::string Print(const std::vector<std::string>& parts) {
  std::string sum;
  for (const std::string& part : parts) {
    if (part != "''") absl::StrAppend(&sum, sum.empty() ? "" : " + ", part);
  }
  return sum.empty() ? "" : absl::StrCat("{{- ", sum, " }}");
}

std::string If(absl::string_view condition, absl::string_view then) {
  return then.empty() ? "" : absl::StrCat("{%- if ", condition, " %}", then, "{%- endif %}");
}

class Writer {
 public:
  Writer(const ChatMarkup& markup, absl::string_view end_of_text)
      : markup_(markup),
        end_of_turn_(markup.end_of_turn.empty() ? end_of_text : markup.end_of_turn),
        ends_in_text_(end_of_turn_.empty()) {}

  std::string Write(absl::string_view first_token) {
    Line(Print({Quoted(first_token)}));
    if (markup_.always_has_system) Line(If("messages[0]['role'] != 'system'", DefaultSystem()));
    if (has_system_in_user()) FindSystemUser();
    Line("{%- for message in messages %}");
    Line(absl::StrCat("{%- set content = message['content']", trim(), " %}"));
    Line(If(ends_in_text_ ? "not loop.first and messages[loop.index0 - 1]['role'] != 'assistant'" : "not loop.first",
            Print({Quoted(markup_.between)})));
    Roles();
    Line("{%- endfor %}");
    text_ += If("add_generation_prompt", GenerationPrompt());  // without a line's end: not every renderer drops it
    return text_;
  }

 private:
  void Line(absl::string_view line) {
    if (!line.empty()) absl::StrAppend(&text_, line, "\n");
  }
  std::string trim() const { return markup_.trims ? " | trim" : ""; }
  bool has_system_in_user() const { return markup_.system_place != SystemPlace::kOwnTurn; }

  std::string DefaultSystem() const {
    return Print({Quoted(markup_.system.before), Quoted(markup_.system_lead), Quoted(markup_.default_system),
                  Quoted(markup_.system.after)});
  }

  // ns.system is the turn of the user that takes the system's words.
  void FindSystemUser() {
    Line("{%- set ns = namespace(system=-1) %}");
    if (markup_.system_place == SystemPlace::kFirstUser) {
      Line("{%- if messages[0]['role'] == 'system' %}{%- set ns.system = 1 %}{%- endif %}");
      return;
    }
    Line("{%- for message in messages %}");
    Line(
        "{%- if messages[0]['role'] == 'system' and message['role'] == 'user' %}{%- set ns.system = loop.index0 %}"
        "{%- endif %}");
    Line("{%- endfor %}");
  }

  void Roles() {
    Line("{%- if message['role'] == 'user' %}");
    User();
    if (!markup_.tool.before.empty()) {
      Line("{%- elif message['role'] == 'tool' %}");
      Tool();
    }
    Line("{%- elif message['role'] == 'assistant' %}");
    Assistant();
    if (!has_system_in_user()) {
      Line("{%- else %}");
      Line(Print({Quoted(markup_.system.before)}));
      Line(If("loop.first", Print({Quoted(markup_.system_lead)})));
      Line(Print({"content", Quoted(markup_.system.after)}));
    }
    Line("{%- endif %}");
  }

  void User() {
    if (has_system_in_user()) {
      Line("{%- if loop.index0 == ns.system %}");
      // Both are trimmed as one.
      Line(absl::StrCat("{%- set content = (", Quoted(markup_.system.before), " + messages[0]['content'] + ",
                        Quoted(markup_.system.after), " + message['content'])", trim(), " %}"));
      Line("{%- endif %}");
    }
    Line(Print({Quoted(markup_.exchange_token), Quoted(markup_.user.before), "content", Quoted(markup_.user.after)}));
  }

  void Tool() {
    Line(If("loop.first or messages[loop.index0 - 1]['role'] != 'tool'", Print({Quoted(markup_.tools.before)})));
    Line(Print({Quoted(markup_.tool.before), markup_.tool_is_json ? "message['content'] | tojson" : "content",
                Quoted(markup_.tool.after)}));
    Line(If("loop.last or messages[loop.index0 + 1]['role'] != 'tool'", Print({Quoted(markup_.tools.after)})));
  }

  void Assistant() {
    if (markup_.has_thoughts) Line("{%- set content = content.split('</think>')[-1].lstrip('\\n') %}");
    Line(Print({Quoted(markup_.answer_before), Quoted(markup_.answer_lead), "content", Quoted(markup_.answer_tail),
                Quoted(ends_in_text_ ? kBlankLine : end_of_turn_), Quoted(markup_.answer_after)}));
  }

  std::string GenerationPrompt() const {
    const std::string between = ends_in_text_
                                    ? If("messages[-1]['role'] != 'assistant'", Print({Quoted(markup_.between)}))
                                    : Print({Quoted(markup_.between)});
    const std::string thought = markup_.has_thoughts ? If("enable_thinking is defined and enable_thinking is false",
                                                          Print({Quoted("<think>\n\n</think>\n\n")}))
                                                     : "";
    return absl::StrCat(between, Print({Quoted(markup_.answer_before)}), thought);
  }

  const ChatMarkup& markup_;
  const absl::string_view end_of_turn_;
  const bool ends_in_text_;  // an answer does, with a blank line
  std::string text_;
};

}  // namespace

std::string ChatTemplateJinja(const ChatMarkup& markup, absl::string_view first_token, absl::string_view end_of_text) {
  return Writer(markup, end_of_text).Write(first_token);
}

}  // namespace eps
