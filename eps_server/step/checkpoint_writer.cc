#include "eps_server/step/checkpoint_writer.h"

#include <set>
#include <utility>

namespace eps::server {

CheckpointWriter::CheckpointWriter(Checkpointer* checkpointer, const Store* store)
    : checkpointer_(checkpointer), store_(store), thread_([this] { Loop(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    MutexLock lock(mu_);
    shutdown_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

void CheckpointWriter::Push(Job job) {
  MutexLock lock(mu_);
  jobs_.push_back(std::move(job));
  wake_.NotifyAll();
}

void CheckpointWriter::Loop() {
  while (true) {
    Job job;
    {
      MutexLock lock(mu_);
      while (jobs_.empty() && !shutdown_) wake_.Wait(mu_);
      if (shutdown_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    Write(job);
  }
}

bool CheckpointWriter::is_shut_down() {
  MutexLock lock(mu_);
  return shutdown_;
}

void CheckpointWriter::Write(const Job& job) {
  // A write that fails half-way has captured only some: the others may be updated all the same.
  std::set<BlobId> left(job.order.begin(), job.order.end());
  absl::StatusOr<std::string> path = checkpointer_->Write(*store_, job.state,
                                                          {.order = job.order,
                                                           .captured =
                                                               [&](BlobId blob) {
                                                                 if (left.erase(blob) > 0) job.captured(blob);
                                                               },
                                                           .is_awaited = job.is_awaited,
                                                           .is_cancelled = [this] { return is_shut_down(); }});
  for (const BlobId blob : left) job.captured(blob);
  job.done(std::move(path));
}

}  // namespace eps::server
