#include "eps_server/store/paged_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"

namespace eps::server {
namespace {

// A burst of updates does not wait for writes.
constexpr int64_t kFrames = 32;
// So many pages are read ahead of those that are opened. More would lie in frames for long where others come in between, as
// gradients of earlier layers do.
constexpr int64_t kAhead = 8;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

PagingSizes ComputePagingSizes(absl::Span<const PageRun> pages) {
  PagingSizes sizes;
  int64_t num_pages = 0;
  for (const PageRun& run : pages) {
    EPS_CHECK(run.count >= 0 && run.num_bytes >= 0 && run.num_bytes % 64 == 0);
    num_pages += run.count;
    const int64_t num_bytes = RoundUp(run.num_bytes, ScratchFile::kAlignBytes);
    sizes.disk_bytes += run.count * num_bytes;
    sizes.frame_bytes = std::max(sizes.frame_bytes, num_bytes);
  }
  sizes.num_frames = std::min(kFrames, num_pages);
  return sizes;
}

absl::StatusOr<std::unique_ptr<PagedMemory>> PagedMemory::Create(Options options) {
  const PagingSizes sizes = ComputePagingSizes(options.pages);
  EPS_ASSIGN_OR_RETURN(AnonymousMemory frames, AnonymousMemory::Map(sizes.memory_bytes(), options.what));
  EPS_ASSIGN_OR_RETURN(ScratchFile file, ScratchFile::Create(options.folder, sizes.disk_bytes));
  LogInfo("offload_opened", {{"folder", options.folder},
                             {"disk_bytes", sizes.disk_bytes},
                             {"buffer_bytes", sizes.memory_bytes()},
                             {"past_page_cache", file.is_direct()}});
  if (file.is_in_memory()) {
    LogWarning("offload_in_memory",
               {{"folder", options.folder}, {"why", "its file system is memory, of which nothing is saved so"}});
  }
  std::unique_ptr<PagedMemory> memory(new PagedMemory(std::move(options), sizes, std::move(frames), std::move(file)));
  EPS_RETURN_IF_ERROR(memory->StartThreads());
  return memory;
}

PagedMemory::PagedMemory(Options options, PagingSizes sizes, AnonymousMemory frames, ScratchFile file)
    : options_(std::move(options)),
      sizes_(sizes),
      frame_memory_(std::move(frames)),
      file_(std::move(file)),
      frames_(static_cast<size_t>(sizes.num_frames)) {
  int64_t offset_bytes = 0;
  for (const PageRun& run : options_.pages) {
    for (int64_t i = 0; i < run.count; ++i) {
      places_.push_back({.offset_bytes = offset_bytes, .num_bytes = run.num_bytes});
      offset_bytes += RoundUp(run.num_bytes, ScratchFile::kAlignBytes);
    }
  }
  pages_.resize(places_.size());
  for (size_t f = 0; f < frames_.size(); ++f) {
    frames_[f].memory = frame_memory_.base() + static_cast<int64_t>(f) * sizes_.frame_bytes;
  }
}

PagedMemory::~PagedMemory() {
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status PagedMemory::StartThreads() {
  for (int i = 0; i < kPageMovers; ++i) {
    EPS_ASSIGN_OR_RETURN(std::thread thread, StartThread([this] { MovePages(); }));
    threads_.push_back(std::move(thread));
  }
  return absl::OkStatus();
}

absl::Span<std::byte> PagedMemory::BytesOnDisk(const Frame& frame) const {
  const int64_t num_bytes = places_[static_cast<size_t>(frame.page)].num_bytes;
  return {frame.memory, static_cast<size_t>(RoundUp(num_bytes, ScratchFile::kAlignBytes))};
}

// ---- for whoever uses pages ----

absl::StatusOr<std::shared_ptr<std::byte>> PagedMemory::Open(int64_t page, Access access) {
  EPS_CHECK(page >= 0 && page < static_cast<int64_t>(places_.size()));
  EPS_ASSIGN_OR_RETURN(Frame* const frame, OpenFrame(page, access));
  return std::shared_ptr<std::byte>(frame->memory, [this, frame](std::byte*) { Close(frame); });
}

void PagedMemory::Prefetch(int64_t page) {
  {
    MutexLock lock(mu_);
    if (PageOf(page).frame != nullptr || !PageOf(page).is_in_file) return;
    wanted_.insert(page);
  }
  changed_.NotifyAll();
}

PagingCounts PagedMemory::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

absl::StatusOr<PagedMemory::Frame*> PagedMemory::OpenFrame(int64_t page, Access access) {
  const auto begin = std::chrono::steady_clock::now();
  const auto note_wait = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    counts_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Frame* frame = nullptr;
  bool from_file = false;
  {
    MutexLock lock(mu_);
    Page& opened = PageOf(page);
    wanted_.erase(page);
    bool has_waited = false;
    while (true) {
      if (!failure_.ok()) return failure_;
      frame = opened.frame;
      if (frame != nullptr && !frame->is_moving) {
        ++frame->opens;
        frame->is_dirty |= access == Access::kWrite;
        frame->is_ahead = false;
        if (has_waited) note_wait();
        return frame;
      }
      if (frame == nullptr && (frame = TakeFrame(/*before=*/-1)) != nullptr) break;
      has_waited = true;
      ++waiting_;
      changed_.NotifyAll();  // a frame may have to be written back for it
      changed_.Wait(mu_);
      --waiting_;
    }
    Assign(frame, page);
    frame->opens = 1;
    frame->is_dirty = access == Access::kWrite;
    from_file = opened.is_in_file;
  }
  const absl::Status status = Fill(*frame, from_file);
  MutexLock lock(mu_);
  if (!status.ok()) frame->opens = 0;
  EndMove(frame, status);
  note_wait();
  EPS_RETURN_IF_ERROR(status);
  return frame;
}

void PagedMemory::Close(Frame* frame) {
  {
    MutexLock lock(mu_);
    frame->last_use = ++uses_;
    if (--frame->opens > 0) return;
  }
  changed_.NotifyAll();
}

// ---- frames ----

PagedMemory::Frame* PagedMemory::TakeFrame(int64_t before) {
  Frame* best = nullptr;
  for (Frame& frame : frames_) {
    if (frame.opens > 0 || frame.is_moving || frame.is_dirty || (frame.is_ahead && frame.page < before)) continue;
    // One that holds nothing, else the one that was used longest ago, else the last page of those read ahead.
    const auto rank = [](const Frame& f) {
      return f.page < 0 ? std::pair<int, int64_t>(0, 0) : f.is_ahead ? std::pair(2, -f.page) : std::pair(1, f.last_use);
    };
    if (best == nullptr || rank(frame) < rank(*best)) best = &frame;
  }
  if (best == nullptr || best->page < 0) return best;
  PageOf(best->page).frame = nullptr;
  if (best->is_ahead) wanted_.insert(best->page);  // it is still to be opened
  best->page = -1;
  best->is_ahead = false;
  return best;
}

void PagedMemory::Assign(Frame* frame, int64_t page) {
  frame->page = page;
  frame->is_moving = true;
  PageOf(page).frame = frame;
}

// As long as less than half of the frames could be taken, or will be once they are written, the one that was used longest
// ago.
PagedMemory::Frame* PagedMemory::NextToWrite() {
  int64_t free = 0;
  Frame* oldest = nullptr;
  for (Frame& frame : frames_) {
    if (frame.opens > 0) continue;
    if (!frame.is_dirty || frame.is_moving) {
      ++free;
    } else if (oldest == nullptr || frame.last_use < oldest->last_use) {
      oldest = &frame;
    }
  }
  return free < static_cast<int64_t>(frames_.size()) / 2 || waiting_ > 0 ? oldest : nullptr;
}

PagedMemory::Frame* PagedMemory::NextToReadAhead() {
  if (wanted_.empty() || waiting_ > 0) return nullptr;
  const int64_t page = *wanted_.begin();
  const auto ahead = std::count_if(frames_.begin(), frames_.end(),
                                   [page](const Frame& frame) { return frame.is_ahead && frame.page < page; });
  Frame* const frame = ahead < kAhead ? TakeFrame(/*before=*/page) : nullptr;
  if (frame == nullptr) return nullptr;
  wanted_.erase(page);
  Assign(frame, page);
  frame->is_ahead = true;
  return frame;
}

// ---- pages that move ----

void PagedMemory::MovePages() {
  while (true) {
    Frame* frame = nullptr;
    bool writes = false;
    {
      MutexLock lock(mu_);
      while (true) {
        if (ended_) return;
        if (!failure_.ok()) {
          changed_.Wait(mu_);
          continue;
        }
        frame = NextToWrite();
        writes = frame != nullptr;
        if (!writes) frame = NextToReadAhead();
        if (frame != nullptr) break;
        changed_.Wait(mu_);
      }
      frame->is_moving = true;
    }
    const absl::Status status = writes ? WriteBack(*frame) : Fill(*frame, /*from_file=*/true);
    MutexLock lock(mu_);
    if (writes && status.ok()) {
      frame->is_dirty = false;
      PageOf(frame->page).is_in_file = true;
    }
    EndMove(frame, status);
  }
}

absl::Status PagedMemory::Fill(const Frame& frame, bool from_file) {
  const absl::Span<std::byte> bytes = BytesOnDisk(frame);
  if (!from_file) {
    std::memset(bytes.data(), 0, bytes.size());
    if (options_.initialize != nullptr) options_.initialize(frame.page, frame.memory);
    return absl::OkStatus();
  }
  EPS_RETURN_IF_ERROR(file_.Read(places_[static_cast<size_t>(frame.page)].offset_bytes, bytes));
  MutexLock lock(mu_);
  counts_.read_bytes += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status PagedMemory::WriteBack(const Frame& frame) {
  const absl::Span<const std::byte> bytes = BytesOnDisk(frame);
  EPS_RETURN_IF_ERROR(file_.Write(places_[static_cast<size_t>(frame.page)].offset_bytes, bytes));
  MutexLock lock(mu_);
  counts_.written_bytes += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

void PagedMemory::EndMove(Frame* frame, const absl::Status& status) {
  frame->is_moving = false;
  if (failure_.ok()) failure_ = status;
  changed_.NotifyAll();
}

}  // namespace eps::server
