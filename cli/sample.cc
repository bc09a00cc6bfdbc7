// eps sample: text from a checkpoint, or classes of texts, computed by a daemon that serves it and a worker that
// relays.

#include <signal.h>

#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/class_answer.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/device_probe.h"
#include "cli/sample_prompt.h"
#include "cli/sampling_server.h"
#include "cli/signal_queue.h"
#include "cli/text_until.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/corpus/line_reader.h"
#include "common/model/hf_config.h"

namespace eps::cli {
namespace {

struct SampleFlags {
  std::string checkpoint;
  std::string prompt = "\n";
  std::string prompt_tokens;
  bool chat = false;
  std::string messages;
  std::string system;
  std::string chat_template;  // "": the run's
  std::string in;
  bool no_thoughts = false;
  bool no_stop = false;
  std::string tokenizer;
  int32_t tokens = 200;
  double temperature = 0.8;
  int32_t top_k = 0;
  uint64_t seed = 1;
  RunFlags run;  // --set alone
  WorkerFlags worker;

  bool is_chat() const { return chat || !messages.empty(); }
};

absl::StatusOr<std::vector<int32_t>> TokenIds(const std::string& words, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (const auto part : absl::StrSplit(words, ',')) {
    const std::vector<std::string> in_part = absl::StrSplit(part, ' ', absl::SkipEmpty());
    if (in_part.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--prompt-tokens: ", words, " has a comma with no id beside it"));
    }
    for (const std::string& word : in_part) {
      int32_t token = 0;
      if (!absl::SimpleAtoi(word, &token) || token < 0 || token >= vocab) {
        return absl::InvalidArgumentError(
            absl::StrCat("--prompt-tokens: ", word, " is not a token id in [0, ", vocab, ")"));
      }
      tokens.push_back(token);
    }
  }
  return tokens;
}

absl::StatusOr<std::vector<ChatMessage>> MessagesOf(const SampleFlags& flags) {
  std::vector<ChatMessage> messages = {{.role = Role::kUser, .content = flags.prompt}};
  if (!flags.messages.empty()) {
    EPS_ASSIGN_OR_RETURN(messages, ReadMessages(flags.messages));
  }
  if (flags.system.empty()) return messages;
  if (!messages.empty() && messages.front().role == Role::kSystem) {
    return absl::InvalidArgumentError(absl::StrCat("--system: ", flags.messages, " begins with a system message"));
  }
  messages.insert(messages.begin(), {.role = Role::kSystem, .content = flags.system});
  return messages;
}

absl::StatusOr<SamplePrompt> PromptOf(const SampleFlags& flags, const ModelTokenizer& model) {
  if (!flags.is_chat()) return PromptOfText(model, flags.prompt);
  EPS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, MessagesOf(flags));
  return PromptOfChat(model, messages, flags.no_thoughts ? Thoughts::kNone : Thoughts::kLeftToModel, flags.messages);
}

// Prints tokens as they come: text, or, without a tokenizer, ids.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer* tokenizer, const SamplePrompt& prompt)
      : tokenizer_(tokenizer), tokens_(prompt.ids), until_(Text().size(), prompt.text_end) {}

  // False once nobody takes it, or the text that ends it has come.
  bool Print(int32_t token) {
    tokens_.push_back(token);
    if (tokenizer_ == nullptr) {
      std::printf("%d ", token);
    } else {
      Write(until_.Next(Text()));
    }
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && !until_.has_ended();
  }
  void End() { Write(until_.Rest(Text())); }

 private:
  static constexpr bool kSkipSpecials = false;
  // All of them again each time: what a token spells may depend on those before it.
  std::string Text() const { return tokenizer_ == nullptr ? "" : tokenizer_->Decode(tokens_, kSkipSpecials); }
  static void Write(absl::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;
  TextUntil until_;
};

absl::Status WriteText(const SampleFlags& flags, const std::string& folder, const ModelConfig& config,
                       SignalQueue& signals) {
  ModelTokenizer model;
  SamplePrompt prompt;
  if (!flags.prompt_tokens.empty()) {
    EPS_ASSIGN_OR_RETURN(prompt.ids, TokenIds(flags.prompt_tokens, config.vocab));
  } else {
    EPS_ASSIGN_OR_RETURN(model, OpenModelTokenizer(flags.tokenizer, folder, config.vocab));
    if (!flags.chat_template.empty()) model.chat_template = flags.chat_template;
    EPS_ASSIGN_OR_RETURN(prompt, PromptOf(flags, model));
  }
  if (prompt.ids.empty()) return absl::InvalidArgumentError("--prompt: at least one token is needed");
  if (flags.no_stop) {
    prompt.ends.clear();
    prompt.text_end.clear();
  }
  const auto prompt_tokens = static_cast<int64_t>(prompt.ids.size());
  if (const std::string cut = CutText(prompt_tokens, config.context); flags.is_chat() && !cut.empty()) {
    std::fprintf(stderr, "eps: warning: %s\n", cut.c_str());
  }

  proto::GenerateRequest request;
  request.mutable_prompt()->Add(prompt.ids.begin(), prompt.ids.end());
  request.set_max_tokens(flags.tokens);
  request.set_temperature(flags.temperature);
  request.set_top_k(flags.top_k);
  request.set_seed(flags.seed);
  const int64_t text_tokens = prompt_tokens + flags.tokens;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SamplingServer> server,
                       SamplingServer::Start(folder, flags.run.set, text_tokens, flags.worker, signals));
  TokenPrinter printer(model.tokenizer.get(), prompt);
  bool shows_prompt = model.tokenizer != nullptr && !flags.is_chat();
  EPS_RETURN_IF_ERROR(server->Generate(request, [&](const proto::GenerateReply& reply) {
    if (std::exchange(shows_prompt, false)) std::fputs(flags.prompt.c_str(), stdout);
    return !prompt.ends.contains(reply.token()) && printer.Print(reply.token());
  }));
  printer.End();
  std::printf("\n");
  return absl::OkStatus();
}

// ---- classifiers

// False once nobody takes it.
absl::StatusOr<bool> PrintClass(const std::vector<int32_t>& ids, const ModelConfig& config, SamplingServer& server) {
  proto::GenerateRequest request;
  request.mutable_prompt()->Add(ids.begin(), ids.end());
  request.set_max_tokens(1);
  absl::StatusOr<std::string> line = absl::InternalError("the daemon ended its answer without a class");
  EPS_RETURN_IF_ERROR(server.Generate(request, [&](const proto::GenerateReply& reply) {
    line = ClassLine(config, reply);
    return line.ok();
  }));
  EPS_RETURN_IF_ERROR(line.status());
  std::fputs(line->c_str(), stdout);
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

// A line for each line of the file in `path`, an empty one for a blank one.
absl::Status PrintClassesOfLines(const std::string& path, LineReader& lines, const ModelTokenizer& model,
                                 const ModelConfig& config, SamplingServer& server) {
  for (TextLine line;;) {
    const absl::StatusOr<bool> found = lines.Next(line);
    EPS_RETURN_IF_ERROR_WITH(found.status(), path);
    if (!*found) return absl::OkStatus();
    if (absl::StripAsciiWhitespace(line.text).empty()) {
      std::printf("\n");
      continue;
    }
    const absl::StatusOr<std::vector<int32_t>> ids = PromptOfClassifier(model, line.text, config.context);
    EPS_RETURN_IF_ERROR_WITH(ids.status(), absl::StrCat(path, ": ", LinePlace(line)));
    EPS_ASSIGN_OR_RETURN(const bool taken, PrintClass(*ids, config, server));
    if (!taken) return absl::OkStatus();
  }
}

// Of every line of flags.in, which is opened before anything is started.
absl::Status TellLinesApart(const SampleFlags& flags, const std::string& folder, const ModelConfig& config,
                            SignalQueue& signals) {
  EPS_ASSIGN_OR_RETURN(const ModelTokenizer model, OpenModelTokenizer(flags.tokenizer, folder, config.vocab));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<LineReader> lines, LineReader::Open(flags.in));
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SamplingServer> server,
                       SamplingServer::Start(folder, flags.run.set, config.context, flags.worker, signals));
  return PrintClassesOfLines(flags.in, *lines, model, config, *server);
}

// `config`: of the model as it was trained, its context too.
absl::Status TellApart(const SampleFlags& flags, const std::string& folder, const ModelConfig& config,
                       SignalQueue& signals) {
  if (flags.is_chat()) return absl::InvalidArgumentError("--chat: the model is a classifier, which answers no chat");
  if (!flags.in.empty()) return TellLinesApart(flags, folder, config, signals);
  std::vector<int32_t> ids;
  if (!flags.prompt_tokens.empty()) {
    EPS_ASSIGN_OR_RETURN(ids, TokenIds(flags.prompt_tokens, config.vocab));
  } else {
    EPS_ASSIGN_OR_RETURN(const ModelTokenizer model, OpenModelTokenizer(flags.tokenizer, folder, config.vocab));
    EPS_ASSIGN_OR_RETURN(ids, PromptOfClassifier(model, flags.prompt, config.context));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SamplingServer> server,
                       SamplingServer::Start(folder, flags.run.set, config.context, flags.worker, signals));
  return PrintClass(ids, config, *server).status();
}

absl::Status RunSample(const SampleFlags& flags, SignalQueue& signals) {
  EPS_RETURN_IF_ERROR(ProbeDevice(flags.worker.device, flags.worker.vectors));  // before anything is started
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(flags.checkpoint));
  const absl::StatusOr<std::string> config_text = ReadFile(folder + "/config.json");
  if (!config_text.ok()) EPS_RETURN_IF_ERROR(FindCheckpointFolder(folder).status());  // a run may have removed it since
  EPS_RETURN_IF_ERROR(config_text.status());
  absl::StatusOr<ModelConfig> config = ModelConfigFromJson(*config_text);
  if (!config.ok()) return Annotate(config.status(), folder + "/config.json");
  if (config->is_classifier()) {
    // config.json says how many positions there are; the run, how many tokens a sample had.
    if (const absl::StatusOr<Manifest> manifest = ReadManifest(folder); manifest.ok()) config = manifest->run.model;
    return TellApart(flags, folder, *config, signals);
  }
  if (config->family == ModelFamily::kBert) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/config.json: model_type: a BERT continues no text; it predicts masked tokens"));
  }
  if (!flags.in.empty()) return absl::InvalidArgumentError("--in: given, but the model is no classifier");
  return WriteText(flags, folder, *config, signals);
}

void AddPromptTo(CLI::App& command, SampleFlags& flags) {
  auto* prompt =
      command
          .add_option("--prompt", flags.prompt,
                      "The text to continue, to answer or to tell the class of; to continue it is taken as it is, "
                      "without a token that texts begin with")
          ->default_str("a newline");
  auto* ids =
      command
          .add_option("--prompt-tokens", flags.prompt_tokens, "Token ids to continue, in place of a text; ids come out")
          ->type_name("ID,ID,...")
          ->check(NotEmpty())
          ->excludes(prompt);
  auto* chat = command
                   .add_flag("--chat", flags.chat,
                             "--prompt is what the user says, in the form of a chat that the model was trained with")
                   ->needs(prompt);
  auto* messages =
      command
          .add_option("--messages", flags.messages,
                      "A chat to answer: a JSON list of messages of role and content, in place of --chat and --prompt")
          ->type_name("FILE")
          ->check(NotEmpty())
          ->excludes(prompt)
          ->excludes(ids)
          ->excludes(chat);
  command.add_option("--system", flags.system, "Of a chat: the system message before all others")->type_name("TEXT");
  command
      .add_option(
          "--template", flags.chat_template,
          "Of a chat: its form, as `eps tokenize --template`. Default: that of the run, or of the model's folder")
      ->type_name("NAME")
      ->check(NotEmpty());
  command.add_flag("--no-thoughts", flags.no_thoughts,
                   "Of a chat in a form with thoughts (qwen3): the answer begins behind an empty thought. Default: the "
                   "model says whether and what it thinks");
  command.add_option("--in", flags.in, "Of a classifier: a file of texts, one a line, each answered with a line")
      ->type_name("FILE")
      ->check(NotEmpty())
      ->excludes(prompt)
      ->excludes(ids)
      ->excludes(messages);
}

CLI::Validator IsSeed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t seed = 0;
        return absl::SimpleAtoi(text, &seed) ? ""
                                             : absl::StrCat("\"", text, "\" is no whole number from 0 to 2^64 - 1");
      },
      "");
}

// What CLI11 cannot say of flags that need one of two others.
absl::Status CheckFlags(const SampleFlags& flags) {
  if (flags.is_chat()) return absl::OkStatus();
  if (!flags.system.empty()) return absl::InvalidArgumentError("--system: is of a chat: give --chat or --messages");
  if (!flags.chat_template.empty()) {
    return absl::InvalidArgumentError("--template: is of a chat: give --chat or --messages");
  }
  if (flags.no_thoughts) {
    return absl::InvalidArgumentError("--no-thoughts: is of a chat: give --chat or --messages");
  }
  return absl::OkStatus();
}

}  // namespace

void AddSample(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("sample",
                                         "Continues a text or answers a chat with a checkpoint's model, or tells a "
                                         "text's class, by relay: a layer at a time "
                                         "on the device");
  auto flags = std::make_shared<SampleFlags>();
  command
      ->add_option("--checkpoint", flags->checkpoint,
                   "A step-NNNNNNNN folder, checkpoints/latest, a run's folder, or a Hugging Face folder")
      ->type_name("PATH")
      ->required();
  AddPromptTo(*command, *flags);
  command->add_flag("--no-stop", flags->no_stop, "Goes on behind what ends a text or a turn");
  command
      ->add_option(
          "--tokenizer", flags->tokenizer,
          "Folder with tokenizer.json or tokenizer.model, one of these files, or bytes. Default: the checkpoint's "
          "folder, if it has one, else what the run was trained with; bytes for a vocabulary of 256. Special "
          "tokens in the prompt are these")
      ->type_name("PATH")
      ->check(NotEmpty());
  command->add_option("--tokens", flags->tokens, "How many to add, at most")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0 takes the most likely token each time")
      ->check(NumberIn(0, 100))
      ->capture_default_str();
  command->add_option("--top-k", flags->top_k, "Only among the K most likely; 0: among all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "The same seed gives the same text")
      ->check(IsSeed())
      ->capture_default_str();
  flags->run.AddSetTo(*command)->description(
      "precision.wire (BF16, FP32, FP16: what weights are pulled in) or precision.frozen (MXINT8, NF4: the blocks' "
      "matrices in 8 or 4 bits; WIRE: as all else). Default: as the run has them; of a Hugging Face folder BF16 where "
      "it is, else "
      "FP32");
  flags->worker.AddTo(*command);
  command->callback([flags, exit_code] {
    // A terminal that is closed ends it too: nothing may be left of its folder.
    absl::StatusOr<SignalQueue> signals = SignalQueue::Create({SIGINT, SIGTERM, SIGHUP});
    absl::Status status = signals.ok() ? CheckFlags(*flags) : signals.status();
    if (status.ok()) status = RunSample(*flags, *signals);
    if (!status.ok()) PrintError(status);
    *exit_code = absl::IsCancelled(status) ? kExitSignal + signals->last() : StartExitCode(status);
  });
}

}  // namespace eps::cli
