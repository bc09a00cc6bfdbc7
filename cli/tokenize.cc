// eps tokenize: text, JSONL or TSV to a token file; and what such a file holds.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/progress.h"
#include "cli/signal_queue.h"
#include "cli/token_view.h"
#include "common/base/control_groups.h"
#include "common/base/exit_code.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/corpus/chat_template_names.h"
#include "common/corpus/data_form.h"
#include "common/corpus/tokenize_corpus.h"
#include "common/formats/document_index.h"
#include "common/formats/document_index_writer.h"
#include "common/formats/token_file.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps::cli {
namespace {

constexpr absl::Duration kSignalInterval = absl::Milliseconds(50);
constexpr int64_t kTokensShown = 1024;  // of a document
constexpr char kBytes[] = "bytes";      // in the place of a tokenizer's path
// Of some of what can be tokenized alone.
constexpr char kTemplate[] = "--template";
constexpr char kCount[] = "--count";
constexpr char kSkipBadLines[] = "--skip-bad-lines";
constexpr char kSeparator[] = "--separator";
constexpr char kSpecialTokens[] = "--special-tokens";
constexpr char kNoHeader[] = "--no-header";
constexpr char kTextColumn[] = "--text-column";
constexpr char kSecondTextColumn[] = "--second-text-column";
constexpr char kLabelColumn[] = "--label-column";

struct TokenizeFlags {
  std::string tokenizer;
  TokenizeOptions options;
  std::string format = "auto";
  std::string count = "answers";
  std::string specials = "as-text";
  std::string bos;  // "": not given
  std::string eos;
  bool quiet = false;
  std::string print;
  int64_t documents = 5;
};

// Says to stop when SIGINT or SIGTERM comes, as long as it lives.
class StopOnSignal {
 public:
  explicit StopOnSignal(SignalQueue signals) : signals_(std::move(signals)) {}
  ~StopOnSignal() { End(); }

  absl::Status Start() {
    EPS_ASSIGN_OR_RETURN(thread_, StartThread([this] {
                           while (!ended_ && !stop_) stop_ = signals_.Wait(kSignalInterval).has_value();
                         }));
    return absl::OkStatus();
  }
  const std::atomic<bool>& stop() const { return stop_; }
  // The signal that came; 0: none.
  int End() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return signals_.last();
  }

 private:
  SignalQueue signals_;  // the thread's, while it runs
  std::atomic<bool> stop_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& name) {
  if (name == kBytes) return MakeByteTokenizer();
  return LoadTokenizer(name);
}

std::vector<std::string> TemplateNames() {
  std::vector<std::string> names = {"auto"};
  for (const absl::string_view name : kChatTemplateNames) names.emplace_back(name);
  return names;
}

std::optional<std::string> TokenFlag(const std::string& given) {
  if (given.empty()) return std::nullopt;
  return given == "none" ? "" : given;
}

TokenizeOptions ToOptions(const TokenizeFlags& flags) {
  TokenizeOptions options = flags.options;
  options.format = flags.format == "text"    ? CorpusFormat::kText
                   : flags.format == "jsonl" ? CorpusFormat::kJsonl
                   : flags.format == "tsv"   ? CorpusFormat::kTsv
                                             : CorpusFormat::kAuto;
  options.count_all = flags.count == "all";
  options.specials = flags.specials == "as-tokens" ? Tokenizer::Specials::kAsTokens : Tokenizer::Specials::kAsText;
  options.bos = TokenFlag(flags.bos);
  options.eos = TokenFlag(flags.eos);
  if (options.threads == 0) options.threads = UsableCores();
  return options;
}

// By what the command says, or the name.
DataForm FormOf(const TokenizeFlags& flags, const std::string& source) {
  if (flags.format == "auto") return DataFormOfName(source);
  return flags.format == "jsonl" ? DataForm::kJsonl : flags.format == "tsv" ? DataForm::kTable : DataForm::kText;
}

// That each flag that is given means something for one of the sources, as of a run's fields.
absl::Status CheckFlags(const CLI::App& command, const TokenizeFlags& flags) {
  if (flags.options.sources.empty()) return absl::OkStatus();  // which says something else
  bool has_jsonl = false, has_table = false, has_text = false;
  for (const std::string& source : flags.options.sources) {
    const DataForm form = FormOf(flags, source);
    has_jsonl |= form == DataForm::kJsonl;
    has_table |= form == DataForm::kTable;
    has_text |= form == DataForm::kText || form == DataForm::kTokenIds;  // such a name is one of text here
  }
  struct Use {
    const char* flag;
    bool has_use;
    const char* of_what;
  };
  for (const Use& use :
       {Use{kTemplate, has_jsonl, "JSONL"}, Use{kCount, has_jsonl, "JSONL"},
        Use{kSkipBadLines, has_jsonl || has_table, "JSONL or a table"}, Use{kSeparator, has_text, "plain text"},
        Use{kSpecialTokens, has_text || has_jsonl, "plain text or JSONL"}, Use{kNoHeader, has_table, "a table"},
        Use{kTextColumn, has_table, "a table"}, Use{kSecondTextColumn, has_table, "a table"},
        Use{kLabelColumn, has_table, "a table"}}) {
    if (command.count(use.flag) == 0 || use.has_use) continue;
    return absl::InvalidArgumentError(absl::StrCat(use.flag, ": given, but no file of --in is ", use.of_what,
                                                   "; --format says what they are where their names do not"));
  }
  return absl::OkStatus();
}

// That each document is a pair, which is not seen by their number.
std::string PairsLine(int64_t documents) {
  return absl::StrCat(documents, documents == 1 ? " pair" : " pairs", " of a chosen and a rejected answer\n");
}

// The program's exit code.
absl::StatusOr<int> RunTokenize(const TokenizeFlags& flags) {
  for (const auto& [flag, is_given] : {std::pair("--tokenizer", !flags.tokenizer.empty()),
                                       {"--in", !flags.options.sources.empty()},
                                       {"--out", !flags.options.out.empty()}}) {
    if (!is_given) return absl::InvalidArgumentError(absl::StrCat(flag, " is required, unless --print is given"));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(flags.tokenizer));
  TokenizeOptions options = ToOptions(flags);
  if (flags.tokenizer != kBytes) {
    EPS_ASSIGN_OR_RETURN(options.settings, ReadTokenizerSettings(flags.tokenizer));
  }
  EPS_ASSIGN_OR_RETURN(SignalQueue signals, SignalQueue::Create());  // before any thread
  StopOnSignal stopper(std::move(signals));
  EPS_RETURN_IF_ERROR(stopper.Start());
  ProgressPrinter printer(flags.quiet);
  int64_t shown_bytes = 0;
  const auto show = [&](const TokenizeProgress& progress) {
    const bool is_end = progress.bytes_done == progress.bytes_total;
    if (is_end && shown_bytes < progress.bytes_total) printer.ShowNext();  // nobody is left with what was half of it
    const bool is_shown = printer.ShowLine([&progress](int width) { return TokenizeProgressLine(progress, width); });
    if (is_shown) shown_bytes = progress.bytes_done;
  };
  const absl::StatusOr<TokenizeReport> report = TokenizeCorpus(options, *tokenizer, show, stopper.stop());
  printer.Finish();
  const int signal = stopper.End();
  if (absl::IsCancelled(report.status()) && signal != 0) {
    PrintError(absl::CancelledError("stopped; nothing was written"));
    return kExitSignal + signal;
  }
  EPS_RETURN_IF_ERROR(report.status());
  if (!flags.quiet) std::fputs(TokenizeSummary(*report, flags.options.out).c_str(), stdout);
  if (!flags.quiet && report->has_pairs) std::fputs(PairsLine(report->counts.documents).c_str(), stdout);
  return kExitDone;
}

absl::Status Print(const TokenizeFlags& flags) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentIndex> index, DocumentIndex::Open(DocumentIndexPath(flags.print)));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<TokenFile> file, TokenFile::Open(flags.print, index->token_bytes()));
  if (file->num_tokens() != index->num_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", flags.print, "\": ", file->num_tokens(),
                                                   " tokens, its document index has ", index->num_tokens()));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) {
    EPS_ASSIGN_OR_RETURN(tokenizer, OpenTokenizer(flags.tokenizer));
  }
  std::fputs(ShowTokenFile(*index, flags.print).c_str(), stdout);
  for (int64_t i = 0; i < std::min(flags.documents, index->num_documents()); ++i) {
    EPS_ASSIGN_OR_RETURN(const std::string shown, ShowDocument(*file, *index, i, tokenizer.get(), kTokensShown));
    std::fwrite(shown.data(), 1, shown.size(), stdout);
  }
  return absl::OkStatus();
}

int Run(const CLI::App& command, const TokenizeFlags& flags) {
  if (!flags.print.empty()) return ReportStart(Print(flags));
  if (absl::Status checked = CheckFlags(command, flags); !checked.ok()) return ReportStart(checked);
  const absl::StatusOr<int> code = RunTokenize(flags);
  return code.ok() ? *code : ReportStart(code.status());
}

void AddFlags(CLI::App& command, TokenizeFlags& flags) {
  TokenizeOptions& options = flags.options;
  command
      .add_option("--tokenizer", flags.tokenizer,
                  "A model's folder, its tokenizer.json or tokenizer.model, or \"bytes\": a token per byte")
      ->type_name("PATH")
      ->check(NotEmpty());
  command.add_option("--in", options.sources, "What to read, in this order")->type_name("FILE...")->check(NotEmpty());
  command.add_option("--out", options.out, "The token file to write, and FILE.docs beside it; must not be there")
      ->type_name("FILE")
      ->check(NotEmpty());
  command
      .add_option(
          "--format", flags.format,
          "text, jsonl (text; messages or conversations; instruction, input and output; prompt and completion; prompt, "
          "chosen and rejected), tsv (texts and their classes), or auto: by the name")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "tsv"}))
      ->capture_default_str();
  command
      .add_option(
          kTemplate, options.chat_template,
          "Of conversations: a model family's form of a chat, or auto: by the model's own template, else by the "
          "tokenizer's special tokens")
      ->check(CLI::IsMember(TemplateNames()))
      ->capture_default_str();
  command
      .add_option(kCount, flags.count,
                  "Of conversations: which tokens the loss counts; of a pair of answers the answers, whatever it says")
      ->check(CLI::IsMember({"answers", "all"}))
      ->capture_default_str();
  command
      .add_option(kSpecialTokens, flags.specials,
                  "What spellings of special tokens in texts and messages are; as tokens, they can end a turn")
      ->check(CLI::IsMember({"as-text", "as-tokens"}))
      ->capture_default_str();
  command.add_flag(kSkipBadLines, options.skips_bad_lines,
                   "Of JSONL and TSV: leaves out lines that cannot be taken, and says how many and why");
  // Not bound to the option itself: an empty line would count as not given.
  command
      .add_option_function<std::string>(
          kSeparator, [&options](const std::string& line) { options.separator = line; },
          "Of text: the line between two documents, '' where it is an empty one; else a file is one")
      ->type_name("LINE");
  command.add_flag(absl::StrCat("!", kNoHeader), options.columns.has_header,
                   "Of TSV: the first line is a row, and columns are called 1, 2, ...");
  command.add_option(kTextColumn, options.columns.text, "Of TSV; else as the tasks of GLUE name it")->type_name("NAME");
  command.add_option(kSecondTextColumn, options.columns.second_text, "Of TSV, for pairs")->type_name("NAME");
  command.add_option(kLabelColumn, options.columns.label, "Of TSV: whole numbers, or names of classes")
      ->type_name("NAME");
  command.add_option("--bos", flags.bos, "The token that begins a document, or none; else the tokenizer's")
      ->type_name("TOKEN");
  command.add_option("--eos", flags.eos, "The token that ends a document, or none; else the tokenizer's")
      ->type_name("TOKEN");
  command.add_option("--token-bytes", options.token_bytes, "2 or 4; else what the vocabulary needs")
      ->check(CLI::IsMember({2, 4}));
  options.threads = 0;
  command.add_option("--threads", options.threads, "That encode; else one for each core")->check(CLI::Range(1, 1024));
  command.add_flag("--quiet", flags.quiet, "No progress and no summary");
  command.add_option("--print", flags.print, "Shows what a token file holds; with --tokenizer as text")
      ->type_name("FILE")
      ->check(NotEmpty());
  command.add_option("--documents", flags.documents, "How many of them --print shows")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000'000}))
      ->capture_default_str();
}

}  // namespace

void AddTokenize(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("tokenize", "Turns text, JSONL or TSV into a token file; shows what a token file holds");
  auto flags = std::make_shared<TokenizeFlags>();
  AddFlags(*command, *flags);
  command->callback([command, flags, exit_code] { *exit_code = Run(*command, *flags); });
}

}  // namespace eps::cli
