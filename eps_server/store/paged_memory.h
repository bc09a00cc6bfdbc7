#ifndef EPS_SERVER_STORE_PAGED_MEMORY_H_
#define EPS_SERVER_STORE_PAGED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/anonymous_memory.h"
#include "common/base/mutex.h"
#include "eps_server/store/scratch_file.h"

namespace eps::server {

// So many pages of equal length, a multiple of 64 bytes.
struct PageRun {
  int64_t count = 0;
  int64_t num_bytes = 0;  // of each
};

// What pages take where.
struct PagingSizes {
  int64_t num_frames = 0;
  int64_t frame_bytes = 0;  // of one
  int64_t disk_bytes = 0;
  int64_t memory_bytes() const { return num_frames * frame_bytes; }
};
// A burst of updates, on as many threads as there are, does not wait for writes.
inline constexpr int64_t kDefaultFrames = 32;
PagingSizes ComputePagingSizes(absl::Span<const PageRun> pages, int64_t frames = kDefaultFrames);

// So many pages are on their way at once. One of 2.5 MiB takes a disk about a millisecond: four keep it busy.
inline constexpr int kPageMovers = 4;

// What paging has done; never falls.
struct PagingCounts {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  double wait_seconds = 0;  // of threads that opened a page, for the file: summed over them
};

// Pages that lie in a file, and are used now and then, all of them about as often: each is read into one of a few frames
// when it is opened, or before, and written back when frames run short. Where every page has its turn once a step none is
// worth keeping for having been used last: what is to stay in memory is no page of this.
//
// Not a mapped file, whose pages the kernel would move: an error of the disk would be a signal, what is written back when,
// and what that pushes out of memory, could neither be said nor bounded.
//
// Threads: all methods are safe. One that has a page open opens no other one: as many as there are frames could wait for
// each other. It outlives all who are in Open, and all that Open has returned.
class PagedMemory {
 public:
  struct Options {
    std::string what;  // begins the error where there is no memory: "model state"
    std::vector<PageRun> pages;
    std::string folder;  // of the file
    int64_t frames = kDefaultFrames;
    // What a page holds that nobody has written yet; null: zeros. Given zeros.
    std::function<void(int64_t page, std::byte* memory)> initialize;
  };
  // Errors: RESOURCE_EXHAUSTED no memory · ScratchFile's · UNAVAILABLE no thread
  static absl::StatusOr<std::unique_ptr<PagedMemory>> Create(Options options);
  ~PagedMemory();

  enum class Access { kRead, kWrite };
  // The page's bytes, 64-byte aligned, for as long as the result lives; with kWrite what they are then is what they will
  // be. Waits for the disk where it must. Several may have the same page open.
  // Errors: ScratchFile's: of this page, or of any before it: after one all pages of the file are as good as lost
  absl::StatusOr<std::shared_ptr<std::byte>> Open(int64_t page, Access access);
  // The page will be opened soon, and before others that are asked for and lie behind it: the first few of these are read
  // meanwhile, as far as there are frames.
  void Prefetch(int64_t page);

  PagingCounts counts() const;
  absl::Status status() const;  // the error that Open gives from now on

 private:
  // Memory for a page. In use by one at a time while is_moving.
  struct Frame {
    std::byte* memory = nullptr;
    int64_t page = -1;       // that it holds; -1: none
    int opens = 0;           // that last
    bool is_moving = false;  // to or from the file
    bool is_dirty = false;   // the file does not have it as it is
    int64_t last_use = 0;
  };
  struct Page {
    Frame* frame = nullptr;
    bool is_in_file = false;  // written before; else it is as initialize makes it
  };

  PagedMemory(Options options, PagingSizes sizes, AnonymousMemory frames, ScratchFile file);
  absl::Status StartThreads();
  absl::StatusOr<Frame*> OpenFrame(int64_t page, Access access) ABSL_LOCKS_EXCLUDED(mu_);
  void Close(Frame* frame) ABSL_LOCKS_EXCLUDED(mu_);
  // The frame to give to another page, taken from what it held; null: none can be. What is wanted is taken last, and
  // only if it is a page behind `before`.
  Frame* TakeFrame(int64_t before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Assign(Frame* frame, int64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Frame* NextToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Frame* NextToReadAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a thread that moves pages does until the end.
  void MovePages() ABSL_LOCKS_EXCLUDED(mu_);
  // The frame is_moving, so that nobody else uses its memory.
  absl::Status Fill(const Frame& frame, bool from_file) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteBack(const Frame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  void EndMove(Frame* frame, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Span<std::byte> BytesOnDisk(const Frame& frame) const;
  Page& PageOf(int64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pages_[static_cast<size_t>(page)]; }

  struct Place {
    int64_t offset_bytes = 0;  // in the file
    int64_t num_bytes = 0;
  };

  // Fixed after construction.
  const Options options_;
  const PagingSizes sizes_;
  const AnonymousMemory frame_memory_;
  const ScratchFile file_;
  std::vector<Place> places_;  // by page
  std::vector<std::thread> threads_;

  mutable Mutex mu_;
  CondVar changed_;  // a frame, or something to do
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mu_);
  std::vector<Page> pages_ ABSL_GUARDED_BY(mu_);
  std::set<int64_t> wanted_ ABSL_GUARDED_BY(mu_);  // by Prefetch, and not opened since
  int64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;  // threads in OpenFrame, for a frame that can be taken
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  PagingCounts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::server

#endif  // EPS_SERVER_STORE_PAGED_MEMORY_H_
