#include "eps_server/store/paged_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"

namespace eps::server {
namespace {

// So many of the wanted pages are read ahead: as many as are on their way at once, and as many that wait to be opened. More
// would lie in frames for long where earlier ones come in between, as gradients of earlier layers do.
constexpr int kAhead = 2 * kPageMovers;

}  // namespace

PagingSizes ComputePagingSizes(absl::Span<const PageRun> pages, int64_t frames) {
  PagingSizes sizes;
  int64_t num_pages = 0;
  for (const PageRun& run : pages) {
    EPS_CHECK(run.count >= 0 && run.num_bytes >= 0 && run.num_bytes % 64 == 0);
    num_pages += run.count;
    const int64_t num_bytes = RoundUp(run.num_bytes, ScratchFile::kAlignBytes);
    sizes.disk_bytes += run.count * num_bytes;
    sizes.frame_bytes = std::max(sizes.frame_bytes, num_bytes);
  }
  sizes.num_frames = std::min(frames, num_pages);
  return sizes;
}

absl::StatusOr<std::unique_ptr<PagedMemory>> PagedMemory::Create(Options options) {
  const PagingSizes sizes = ComputePagingSizes(options.pages, options.frames);
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
  MutexLock lock(mu_);
  EPS_CHECK(waiting_ == 0);
  for (const Frame& frame : frames_) EPS_CHECK(frame.opens == 0);
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
  EPS_CHECK(page >= 0 && page < static_cast<int64_t>(places_.size()));
  {
    MutexLock lock(mu_);
    if (PageOf(page).frame == nullptr && !PageOf(page).is_in_file) return;  // there is nothing to read
    wanted_.insert(page);
  }
  changed_.NotifyAll();
}

PagingCounts PagedMemory::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

absl::Status PagedMemory::status() const {
  MutexLock lock(mu_);
  return failure_;
}

absl::StatusOr<PagedMemory::Frame*> PagedMemory::OpenFrame(int64_t page, Access access) {
  const auto begin = std::chrono::steady_clock::now();
  bool has_waited = false;
  const auto note_wait = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!has_waited) return;
    counts_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Frame* frame = nullptr;
  bool from_file = false;
  {
    MutexLock lock(mu_);
    const Page& opened = PageOf(page);
    while (true) {
      if (!failure_.ok()) return failure_;
      frame = opened.frame;
      if (frame != nullptr && !frame->is_moving) {
        wanted_.erase(page);
        ++frame->opens;
        frame->is_dirty |= access == Access::kWrite;
        note_wait();
        return frame;
      }
      if (frame == nullptr && (frame = TakeFrame(/*before=*/-1)) != nullptr) break;
      has_waited = true;
      const bool for_frame = opened.frame == nullptr;
      if (for_frame && ++waiting_ == 1) changed_.NotifyAll();  // one has to be written back for it
      changed_.Wait(mu_);
      if (for_frame && --waiting_ == 0) changed_.NotifyAll();  // reading ahead goes on
    }
    Assign(frame, page);
    wanted_.erase(page);
    frame->opens = 1;
    frame->is_dirty = access == Access::kWrite;
    from_file = opened.is_in_file;
    has_waited |= from_file;
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
  // One that holds nothing, else the one that was used longest ago, else the last of the wanted pages.
  std::pair<int, int64_t> least;
  for (Frame& frame : frames_) {
    if (frame.opens > 0 || frame.is_moving || frame.is_dirty) continue;
    const bool is_wanted = wanted_.contains(frame.page);
    if (is_wanted && frame.page < before) continue;
    const std::pair<int, int64_t> rank = frame.page < 0 ? std::pair<int, int64_t>(0, 0)
                                         : is_wanted    ? std::pair<int, int64_t>(2, -frame.page)
                                                        : std::pair<int, int64_t>(1, frame.last_use);
    if (best == nullptr || rank < least) best = &frame, least = rank;
  }
  if (best == nullptr || best->page < 0) return best;
  PageOf(best->page).frame = nullptr;
  best->page = -1;
  return best;
}

void PagedMemory::Assign(Frame* frame, int64_t page) {
  EPS_CHECK(PageOf(page).frame == nullptr && frame->page < 0);
  PageOf(page).frame = frame;
  frame->page = page;
  frame->is_moving = true;
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
  if (waiting_ > 0) return nullptr;
  int looked_at = 0;
  for (auto page = wanted_.begin(); page != wanted_.end() && looked_at < kAhead; ++page, ++looked_at) {
    if (PageOf(*page).frame != nullptr) continue;
    Frame* const frame = TakeFrame(/*before=*/*page);
    if (frame != nullptr) Assign(frame, *page);
    return frame;
  }
  return nullptr;
}

// ---- pages that move ----

void PagedMemory::MovePages() {
  while (true) {
    Frame* frame = nullptr;
    bool writes = false, from_file = false;
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
      from_file = PageOf(frame->page).is_in_file;
    }
    const absl::Status status = writes ? WriteBack(*frame) : Fill(*frame, from_file);
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
