// eps sample: text from a checkpoint, computed by a daemon that serves it and a worker that relays.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/child_process.h"
#include "cli/command.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/signal_queue.h"
#include "common/base/byte_size.h"
#include "common/base/exit_code.h"
#include "common/base/file_util.h"
#include "common/base/flags.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/grpc/credentials.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/thread_needs.h"
#include "common/model/hf_config.h"
#include "common/tokenizer/tokenizer.h"

namespace eps::cli {
namespace {

constexpr int64_t kByteVocab = 256;  // of a model of bytes, whose tokenizer needs no file
// A model may be made for far more tokens than the text will have, and a plan for all of them fits few devices.
constexpr int64_t kContextStep = 64;
constexpr absl::Duration kStartTimeout = absl::Minutes(10);

struct SampleFlags {
  std::string checkpoint;
  std::string prompt;
  std::string prompt_tokens;
  std::string tokenizer;
  int32_t tokens = 200;
  double temperature = 0.8;
  int32_t top_k = 0;
  uint64_t seed = 1;
  WorkerFlags worker;
};

// A daemon and a worker in a folder of their own; both end with this object.
class Server {
 public:
  // For texts of `text_tokens` tokens, the prompt's included. `signals` outlives the server.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& checkpoint, int64_t text_tokens,
                                                       const SampleFlags& flags, SignalQueue& signals) {
    const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    EPS_RETURN_IF_ERROR(CheckThreadRoom(RunThreads(1, threads)));
    auto server = std::unique_ptr<Server>(new Server(signals));
    EPS_ASSIGN_OR_RETURN(std::string folder, TemporaryFolder());
    folder += "/eps-sample-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return FileError(errno, "make", folder);
    server->folder_ = folder;
    // Where the daemon's socket goes: so that nothing is left even when it is killed.
    setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
    EPS_ASSIGN_OR_RETURN(server->doors_, WriteRunToken(folder));
    EPS_ASSIGN_OR_RETURN(const std::string programs, ProgramFolder());
    EPS_ASSIGN_OR_RETURN(
        server->daemon_,
        Spawn({.name = "eps_server",
               .program = programs + "/eps_server",
               .arguments = {"--serve", checkpoint, "--serve-context", absl::StrCat(RoundUp(text_tokens, kContextStep)),
                             "--out", folder, "--listen", "127.0.0.1:0", "--token-file", server->doors_.token_file},
               .log_path = server->folder_ + "/eps_server.log",
               .signal_when_parent_dies = SIGKILL}));
    EPS_RETURN_IF_ERROR(server->WaitForEndpoint());
    std::vector<std::string> arguments = flags.worker.ToArguments(server->address_, threads, 0);
    arguments.insert(arguments.end(), {"--token-file", server->doors_.token_file});
    EPS_ASSIGN_OR_RETURN(server->worker_, Spawn({.name = "gpu_worker",
                                                 .program = programs + "/gpu_worker",
                                                 .arguments = arguments,
                                                 .log_path = server->folder_ + "/gpu_worker.log",
                                                 .signal_when_parent_dies = SIGKILL}));
    return server;
  }

  ~Server() {
    for (ChildProcess* child : {&worker_, &daemon_}) {
      if (child->running()) kill(child->pid, SIGKILL);
      while (child->running()) {
        Reap({child});
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  absl::StatusOr<DaemonClient> Client() const {
    EPS_ASSIGN_OR_RETURN(auto credentials, NewChannelCredentials(doors_, address_, absl::Now()));
    return DaemonClient(address_, std::move(credentials));
  }

  // Waits up to `timeout` for a signal. OK while both live and none came; else why one ended, with the code of its
  // exit, or CANCELLED.
  absl::Status Check(absl::Duration timeout) {
    if (signals_.Wait(timeout).has_value() || signals_.last() != 0) {
      return absl::CancelledError(absl::StrCat("ended by a signal (", strsignal(signals_.last()), ")"));
    }
    Reap({&daemon_, &worker_});
    for (const ChildProcess* child : {&daemon_, &worker_}) {
      if (child->pid < 0 || child->running()) continue;
      const std::string words = LastWords(*child);
      const std::string message = words.empty() ? absl::StrCat(child->name, " ended: ", EndOf(*child)) : words;
      if (WIFEXITED(*child->wait_status) && WEXITSTATUS(*child->wait_status) == kExitBadInput) {
        return absl::InvalidArgumentError(message);
      }
      if (WIFEXITED(*child->wait_status) && WEXITSTATUS(*child->wait_status) == kExitDoesNotFit) {
        return absl::ResourceExhaustedError(message);
      }
      return absl::InternalError(message);
    }
    return absl::OkStatus();
  }

 private:
  explicit Server(SignalQueue& signals) : signals_(signals) {}

  absl::Status WaitForEndpoint() {
    const absl::Time deadline = absl::Now() + kStartTimeout;
    while (absl::Now() < deadline) {
      EPS_RETURN_IF_ERROR(Check(absl::Milliseconds(5)));
      const absl::StatusOr<Endpoint> endpoint = ReadEndpoint(folder_);
      if (endpoint.ok()) {
        address_ = endpoint->address;
        return absl::OkStatus();
      }
    }
    return absl::DeadlineExceededError("the daemon did not listen in time");
  }

  SignalQueue& signals_;
  std::string folder_;
  std::string address_;
  ClientDoors doors_;
  ChildProcess daemon_;
  ChildProcess worker_;
};

absl::StatusOr<std::vector<int32_t>> TokenIds(const std::string& words, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (const auto word : absl::StrSplit(words, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(word, &token) || token < 0 || token >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens: ", word, " is not a token id in [0, ", vocab, ")"));
    }
    tokens.push_back(token);
  }
  return tokens;
}

// Where the tokenizer of a model is: as told, in its own folder, or where its run had it. "": nowhere.
std::string FindTokenizer(const SampleFlags& flags, const std::string& folder) {
  if (!flags.tokenizer.empty()) return flags.tokenizer;
  std::error_code ignored;
  for (const char* name : {"/tokenizer.json", "/tokenizer.model"}) {
    if (std::filesystem::exists(folder + name, ignored)) return folder;
  }
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  return manifest.ok() ? manifest->run.all_sources().front().data.tokenizer_path : "";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFor(const SampleFlags& flags, const std::string& folder,
                                                        int64_t vocab) {
  const std::string path = FindTokenizer(flags, folder);
  if (path == "bytes" || (path.empty() && vocab == kByteVocab)) return MakeByteTokenizer();
  if (path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the model has a vocabulary of ", vocab,
                                                   ", not of bytes, and no tokenizer beside it: give --tokenizer, or "
                                                   "token ids with --prompt-tokens"));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  if (tokenizer->vocab() <= vocab) return tokenizer;
  return absl::InvalidArgumentError(absl::StrCat("--tokenizer: ", path, " has ids up to ", tokenizer->vocab() - 1,
                                                 ", the model a vocabulary of ", vocab));
}

// Prints tokens as they come: text, or, without a tokenizer, ids.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer* tokenizer, std::vector<int32_t> prompt)
      : tokenizer_(tokenizer), tokens_(std::move(prompt)) {
    if (tokenizer_ != nullptr) shown_bytes_ = tokenizer_->Decode(tokens_, kSkipSpecials).size();
  }

  // False once nobody takes it.
  bool Print(int32_t token) {
    if (tokenizer_ == nullptr) {
      std::printf("%d ", token);
    } else {
      // All of them again: what a token spells may depend on those before it.
      tokens_.push_back(token);
      const std::string text = tokenizer_->Decode(tokens_, kSkipSpecials);
      if (text.size() > shown_bytes_) std::fwrite(text.data() + shown_bytes_, 1, text.size() - shown_bytes_, stdout);
      shown_bytes_ = text.size();
    }
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  }

 private:
  static constexpr bool kSkipSpecials = false;
  const Tokenizer* tokenizer_;
  std::vector<int32_t> tokens_;
  size_t shown_bytes_ = 0;
};

// `print` returns false once nobody takes what it prints: then the text ends.
absl::Status Generate(Server& server, const proto::GenerateRequest& request,
                      const std::function<bool(int32_t)>& print) {
  EPS_ASSIGN_OR_RETURN(DaemonClient client, server.Client());
  grpc::ClientContext context;
  // A worker that could not start never answers, and the daemon waits for another one: the call must not.
  absl::Status processes;
  std::jthread watch([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      processes = server.Check(absl::Milliseconds(20));
      if (!processes.ok()) return context.TryCancel();
    }
  });
  const auto stream = client.stub().Generate(&context, request);
  bool taken = true;
  for (proto::GenerateReply reply; taken && stream->Read(&reply);) taken = print(reply.token());
  if (!taken) context.TryCancel();
  const absl::Status status = FromGrpc(stream->Finish());
  watch.request_stop();
  watch.join();
  if (!taken)
    return absl::OkStatus();  // main says that the output cannot be written, or ends quietly as a closed pipe asks
  return processes.ok() ? status : processes;
}

absl::Status RunSample(const SampleFlags& flags, SignalQueue& signals) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(flags.checkpoint));
  EPS_ASSIGN_OR_RETURN(const std::string config_text, ReadFile(folder + "/config.json"));
  absl::StatusOr<ModelConfig> config = ModelConfigFromJson(config_text);
  if (!config.ok()) return Annotate(config.status(), folder + "/config.json");
  if (config->family == ModelFamily::kBert) {
    return absl::InvalidArgumentError(absl::StrCat(folder,
                                                   "/config.json: model_type: a BERT continues no text; it predicts ",
                                                   config->is_classifier() ? "a class" : "masked tokens"));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> prompt;
  if (flags.prompt_tokens.empty()) {
    EPS_ASSIGN_OR_RETURN(tokenizer, TokenizerFor(flags, folder, config->vocab));
    prompt = tokenizer->Encode(flags.prompt, Tokenizer::Specials::kAsTokens);
  } else {
    EPS_ASSIGN_OR_RETURN(prompt, TokenIds(flags.prompt_tokens, config->vocab));
  }
  if (prompt.empty()) return absl::InvalidArgumentError("--prompt: at least one token is needed");

  proto::GenerateRequest request;
  request.mutable_prompt()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(flags.tokens);
  request.set_temperature(flags.temperature);
  request.set_top_k(flags.top_k);
  request.set_seed(flags.seed);
  const int64_t text_tokens = static_cast<int64_t>(prompt.size()) + flags.tokens;
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server, Server::Start(folder, text_tokens, flags, signals));
  TokenPrinter printer(tokenizer.get(), prompt);
  bool first = true;
  EPS_RETURN_IF_ERROR(Generate(*server, request, [&](int32_t token) {
    if (tokenizer != nullptr && std::exchange(first, false)) std::fputs(flags.prompt.c_str(), stdout);
    return printer.Print(token);
  }));
  std::printf("\n");
  return absl::OkStatus();
}

}  // namespace

void AddSample(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "sample", "Continues a text with a checkpoint's model, by relay: a layer at a time on the device");
  auto flags = std::make_shared<SampleFlags>();
  command
      ->add_option("--checkpoint", flags->checkpoint,
                   "A step-NNNNNNNN folder, checkpoints/latest, a run's folder, or a Hugging Face folder")
      ->type_name("PATH")
      ->required();
  auto* prompt = command->add_option("--prompt", flags->prompt, "The text to continue")->default_str("a newline");
  flags->prompt = "\n";
  command
      ->add_option("--prompt-tokens", flags->prompt_tokens, "Token ids to continue, in place of a text; ids come out")
      ->type_name("ID,ID,...")
      ->check(NotEmpty())
      ->excludes(prompt);
  command
      ->add_option(
          "--tokenizer", flags->tokenizer,
          "Folder with tokenizer.json or tokenizer.model, one of these files, or bytes. Default: the checkpoint's "
          "folder, if it has one, else what the run was trained with; bytes for a vocabulary of 256. Special "
          "tokens in the prompt are these")
      ->type_name("PATH")
      ->check(NotEmpty());
  command->add_option("--tokens", flags->tokens, "How many to add")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0 takes the most likely token each time")
      ->check(NumberIn(0, 100))
      ->capture_default_str();
  command->add_option("--top-k", flags->top_k, "Only among the K most likely; 0: among all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "The same seed gives the same text")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  flags->worker.AddTo(*command);
  command->callback([flags, exit_code] {
    // A terminal that is closed ends it too: nothing may be left of its folder.
    absl::StatusOr<SignalQueue> signals = SignalQueue::Create({SIGINT, SIGTERM, SIGHUP});
    const absl::Status status = signals.ok() ? RunSample(*flags, *signals) : signals.status();
    if (!status.ok()) PrintError(status);
    *exit_code = absl::IsCancelled(status) ? kExitSignal + signals->last() : StartExitCode(status);
  });
}

}  // namespace eps::cli
