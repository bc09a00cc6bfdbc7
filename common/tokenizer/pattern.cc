#include "common/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/pattern_notation.h"

namespace eps {
namespace {

// A long run of spaces takes a step for each; far more than that is a pattern that tries every way to cut the text.
constexpr uint32_t kMaxSteps = 1u << 28;
// What the compiled code may put aside, where the 32 KiB that it has by itself do not do: 8 bytes and more for each
// place to go back to, in the longest single match.
constexpr size_t kFirstStackBytes = size_t{256} << 10, kLastStackBytes = size_t{1} << 30;

PCRE2_SPTR Units(absl::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct PatternScratch::State {
  State() : data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context, kMaxSteps);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void GrowStack() {
    stack = pcre2_jit_stack_create(kFirstStackBytes, kLastStackBytes, nullptr);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;
};

PatternScratch::PatternScratch() : state_(std::make_unique<State>()) {}
PatternScratch::~PatternScratch() = default;
PatternScratch::PatternScratch(PatternScratch&&) noexcept = default;
PatternScratch& PatternScratch::operator=(PatternScratch&&) noexcept = default;

struct Pattern::Code {
  explicit Code(pcre2_code* code) : code(code) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code;
  bool is_compiled = false;  // to machine code; else it is interpreted
};

Pattern::Pattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

absl::StatusOr<Pattern> Pattern::Create(absl::string_view regex) {
  EPS_ASSIGN_OR_RETURN(const std::string ours, ToPcre2Notation(regex));
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Captures are nobody's here: groups only group.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* code = pcre2_compile(Units(ours), ours.size(), kOptions, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("pattern, byte ", offset, " of \"", ours.substr(0, 200), "\": ", MessageOf(error)));
  }
  auto owner = std::make_unique<Code>(code);
  owner->is_compiled = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  return Pattern(std::move(owner));
}

bool Pattern::Find(absl::string_view text, size_t from, PatternScratch& scratch, Match& match) const {
  if (text.empty()) return false;
  PatternScratch::State& state = *scratch.state_;
  const auto search = [&] {
    return code_->is_compiled ? pcre2_jit_match(code_->code, Units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                                                state.data, state.context)
                              : pcre2_match(code_->code, Units(text), text.size(), from, PCRE2_NO_UTF_CHECK, state.data,
                                            state.context);
  };
  int found = search();
  if (found == PCRE2_ERROR_JIT_STACKLIMIT && state.stack == nullptr) {
    state.GrowStack();
    found = search();
  }
  if (found < 0) return false;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state.data);
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace eps
