#include "common/corpus/tokenize_corpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/corpus/document_encoder.h"
#include "common/corpus/document_marks.h"
#include "common/corpus/jsonl.h"
#include "common/corpus/model_vocabulary.h"
#include "common/formats/document_index_writer.h"

namespace eps {
namespace {

constexpr std::chrono::milliseconds kProgressInterval(100);
constexpr int kMaxThreads = 1024;

// A batch on its way: read, encoded by one of the threads, written in order.
struct Job {
  CorpusBatch batch;
  absl::StatusOr<EncodedBatch> encoded = absl::UnknownError("not encoded yet");
  bool done = false;  // then `encoded` is the caller's again
};

// Threads that encode. Jobs are taken in the order in which they come.
class EncoderPool {
 public:
  explicit EncoderPool(const DocumentEncoder& encoder) : encoder_(encoder) {}
  ~EncoderPool() {
    {
      MutexLock lock(mu_);
      closing_ = true;
      todo_.clear();
    }
    work_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Start(int threads) {
    for (int i = 0; i < threads; ++i) {
      EPS_ASSIGN_OR_RETURN(threads_.emplace_back(), StartThread([this] { Run(); }));
    }
    return absl::OkStatus();
  }

  void Add(std::shared_ptr<Job> job) {
    {
      MutexLock lock(mu_);
      todo_.push_back(std::move(job));
    }
    work_.NotifyOne();
  }

  // Whether the job was done within the time.
  bool Wait(const Job& job, std::chrono::nanoseconds timeout) {
    MutexLock lock(mu_);
    if (!job.done) done_.WaitFor(mu_, timeout);
    return job.done;
  }

 private:
  void Run() {
    for (;;) {
      const std::shared_ptr<Job> job = Take();
      if (job == nullptr) return;
      absl::StatusOr<EncodedBatch> encoded = encoder_.Encode(job->batch);
      MutexLock lock(mu_);
      job->encoded = std::move(encoded);
      job->done = true;
      done_.NotifyAll();
    }
  }

  std::shared_ptr<Job> Take() {
    MutexLock lock(mu_);
    while (todo_.empty() && !closing_) work_.Wait(mu_);
    if (closing_) return nullptr;
    std::shared_ptr<Job> job = std::move(todo_.front());
    todo_.pop_front();
    return job;
  }

  const DocumentEncoder& encoder_;
  std::vector<std::thread> threads_;
  Mutex mu_;
  CondVar work_;
  CondVar done_;
  std::deque<std::shared_ptr<Job>> todo_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
};

absl::Status CheckOptions(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  if (options.sources.empty()) return absl::InvalidArgumentError("sources: there are none");
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", options.threads, ", must be in [1, ", kMaxThreads, "]"));
  }
  if (options.token_bytes != 0 && options.token_bytes != 2 && options.token_bytes != 4) {
    return absl::InvalidArgumentError(absl::StrCat("token_bytes: ", options.token_bytes, ", must be 2 or 4"));
  }
  if (options.token_bytes == 2 && tokenizer.vocab() > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_bytes: 2, must be 4 for a vocabulary of ", tokenizer.vocab()));
  }
  // An index that is there may be of another token file, or one of the sources.
  for (const std::string& out : {options.out, DocumentIndexPath(options.out)}) {
    struct stat info;
    if (lstat(out.c_str(), &info) != 0) continue;
    return absl::AlreadyExistsError(absl::StrCat("\"", out, "\" is there already: remove it, or choose another name"));
  }
  return absl::OkStatus();
}

// That documents are pairs of answers, or are none, as options.pairs wants it.
absl::Status CheckPairs(std::optional<bool> wanted, const CorpusSources& sources) {
  const bool has_pairs = sources.content == CorpusContent::kPreferences;
  if (!wanted || *wanted == has_pairs) return absl::OkStatus();
  // The first one that has documents is of the content of all, but one without may stand in front of it.
  const auto is_of_content = [&](const CorpusSource& source) {
    return (source.kind == JsonlKind::kPreferences) == has_pairs;
  };
  const CorpusSource& source = *std::find_if(sources.files.begin(), sources.files.end(), is_of_content);
  if (has_pairs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", source.path,
        "\" has pairs of a chosen and a rejected answer, of which a run learns with \"preferences\"; ",
        "to learn the chosen ones alone, write them as \"completion\" beside their \"prompt\", or as \"messages\""));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", source.path, "\" has no pairs of answers: \"preferences\" wants lines with \"chosen\" and \"rejected\""));
}

// Those that every document has at its ends; what stands within it is looked at as it is encoded.
absl::Status CheckMarks(const DocumentMarks& marks, int64_t vocab, const Tokenizer& tokenizer) {
  for (const auto& [option, id] : {std::pair("bos", marks.first), std::pair("eos", marks.last)}) {
    if (id) EPS_RETURN_IF_ERROR_WITH(CheckModelHas({*id}, vocab, tokenizer), option);
  }
  return absl::OkStatus();
}

// For an error of all sources together: which they are, and how many lines were left out.
std::string InSources(const std::vector<std::string>& sources, const EncodeNotes& notes) {
  constexpr size_t kMaxShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(sources.size(), kMaxShown); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", "\"", sources[i], "\"");
  }
  if (sources.size() > kMaxShown) absl::StrAppend(&text, " and ", sources.size() - kMaxShown, " more");
  if (notes.skipped_lines > 0) absl::StrAppend(&text, ", of which ", notes.skipped_lines, " bad lines were skipped");
  return text;
}

// Keeps the pool busy, and writes what comes out of it in order.
class Relay {
 public:
  Relay(const TokenizeOptions& options, CorpusReader& reader, EncoderPool& pool, CorpusWriter& writer,
        std::function<void(int64_t bytes_done)> report, const std::atomic<bool>& stop)
      : max_jobs_(2 * static_cast<size_t>(options.threads) + 2),
        reader_(reader),
        pool_(pool),
        writer_(writer),
        report_(std::move(report)),
        stop_(stop) {}

  absl::Status Run() {
    absl::StatusOr<bool> more = true;
    while ((more.ok() && *more) || !jobs_.empty()) {
      if (stop_.load(std::memory_order_relaxed)) return absl::CancelledError("stopped");
      if (more.ok() && *more && jobs_.size() < max_jobs_) {
        more = ReadOne();
      } else {
        EPS_RETURN_IF_ERROR(WriteOne());
      }
    }
    // What stands before it in the sources was looked at first: the error does not depend on who was faster.
    return more.status();
  }
  const EncodeNotes& notes() const { return notes_; }

 private:
  absl::StatusOr<bool> ReadOne() {
    auto job = std::make_shared<Job>();
    EPS_ASSIGN_OR_RETURN(const bool found, reader_.Next(job->batch));
    if (!found) return false;
    jobs_.push_back(job);
    pool_.Add(std::move(job));
    return true;
  }

  absl::Status WriteOne() {
    Job& job = *jobs_.front();
    const bool done = pool_.Wait(job, kProgressInterval);
    if (done) {
      EPS_RETURN_IF_ERROR(job.encoded.status());
      EPS_RETURN_IF_ERROR(writer_.Add(*job.encoded));
      notes_.Add(job.encoded->notes);
      bytes_done_ += job.batch.source_bytes;
      jobs_.pop_front();
    }
    const absl::Duration now = SteadyNow();
    if (now - reported_ >= absl::FromChrono(kProgressInterval)) {
      report_(bytes_done_);
      reported_ = now;
    }
    return absl::OkStatus();
  }

  const size_t max_jobs_;
  CorpusReader& reader_;
  EncoderPool& pool_;
  CorpusWriter& writer_;
  const std::function<void(int64_t)> report_;
  const std::atomic<bool>& stop_;
  EncodeNotes notes_;
  std::deque<std::shared_ptr<Job>> jobs_;  // in order; more than any thread needs, so that none waits
  int64_t bytes_done_ = 0;
  absl::Duration reported_ = -absl::InfiniteDuration();
};

}  // namespace

absl::StatusOr<TokenizeReport> TokenizeCorpus(const TokenizeOptions& options, const Tokenizer& tokenizer,
                                              const std::function<void(const TokenizeProgress&)>& progress,
                                              const std::atomic<bool>& stop) {
  const absl::Duration begin = SteadyNow();
  EPS_RETURN_IF_ERROR(CheckOptions(options, tokenizer));
  EPS_ASSIGN_OR_RETURN(const CorpusSources sources, InspectSources(options.sources, options.format, options.columns,
                                                                   stop, options.skips_bad_lines, options.pairs));
  EPS_RETURN_IF_ERROR(CheckPairs(options.pairs, sources));
  EPS_ASSIGN_OR_RETURN(const DocumentMarks marks, ChooseDocumentMarks({.chat_template = options.chat_template,
                                                                       .settings = options.settings,
                                                                       .bos = options.bos,
                                                                       .eos = options.eos},
                                                                      sources.content, tokenizer));
  if (options.vocab > 0) EPS_RETURN_IF_ERROR(CheckMarks(marks, options.vocab, tokenizer));
  const int token_bytes = options.token_bytes > 0 ? options.token_bytes : tokenizer.vocab() <= 65536 ? 2 : 4;
  const DocumentEncoder encoder({.sources = &sources,
                                 .tokenizer = &tokenizer,
                                 .chat = marks.chat ? &*marks.chat : nullptr,
                                 .count_all = options.count_all,
                                 .specials = options.specials,
                                 .skips_bad_lines = options.skips_bad_lines,
                                 .token_bytes = token_bytes,
                                 .vocab = options.vocab,
                                 .cls = marks.cls,
                                 .sep = marks.sep,
                                 .first = marks.first,
                                 .last = marks.last});
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<CorpusWriter> writer,
                       CorpusWriter::Create({.path = options.out,
                                             .index = {.token_bytes = token_bytes,
                                                       .tokenizer_fingerprint = tokenizer.fingerprint(),
                                                       .may_be_cut = sources.content == CorpusContent::kText,
                                                       .has_labels = sources.content == CorpusContent::kClassified,
                                                       .class_names = sources.classes.names()},
                                             .first_token = marks.first,
                                             .last_token = marks.last,
                                             .keeps_own_ends = options.specials == Tokenizer::Specials::kAsTokens}));
  const auto report = [&](int64_t bytes_done) {
    if (progress == nullptr) return;
    progress({.bytes_done = bytes_done,
              .bytes_total = sources.num_bytes,
              .documents = writer->counts().documents,
              .tokens = writer->counts().tokens,
              .seconds = absl::ToDoubleSeconds(SteadyNow() - begin)});
  };
  CorpusReader reader(sources, options.separator);
  EncodeNotes notes;
  {
    EncoderPool pool(encoder);
    EPS_RETURN_IF_ERROR(CheckThreadRoom(options.threads));
    EPS_RETURN_IF_ERROR(pool.Start(options.threads));
    Relay relay(options, reader, pool, *writer, report, stop);
    EPS_RETURN_IF_ERROR(relay.Run());
    notes = relay.notes();
  }
  if (absl::Status finished = writer->Finish(); !finished.ok()) {
    return absl::IsInvalidArgument(finished) ? Annotate(finished, InSources(options.sources, notes)) : finished;
  }
  report(sources.num_bytes);
  return TokenizeReport{.counts = writer->counts(),
                        .source_bytes = sources.num_bytes,
                        .token_bytes = token_bytes,
                        .seconds = absl::ToDoubleSeconds(SteadyNow() - begin),
                        .notes = std::move(notes),
                        .chat_template = marks.chat ? std::string(marks.chat->name()) : "",
                        .chat_template_reason = marks.chat_reason,
                        .has_pairs = sources.content == CorpusContent::kPreferences,
                        .num_classes = sources.classes.num_classes(),
                        .class_names = sources.classes.names()};
}

}  // namespace eps
