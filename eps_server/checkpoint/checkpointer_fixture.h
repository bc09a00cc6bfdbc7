#ifndef EPS_SERVER_CHECKPOINT_CHECKPOINTER_FIXTURE_H_
#define EPS_SERVER_CHECKPOINT_CHECKPOINTER_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/testing/temp_dir.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A run's folder, its model, and stores as they are after a number of steps.
struct CheckpointerFixture {
  explicit CheckpointerFixture(RunConfig of_run = SmallRun())
      : run(std::move(of_run)), model(BuildModel(run.model).value()), directory(dir.File("checkpoints")) {}

  std::unique_ptr<Checkpointer> Open() const { return Checkpointer::Create(directory, model, run).value(); }
  std::unique_ptr<Store> StoreAt(int64_t step) const {
    return FilledStore(model, run, Version(step), static_cast<uint64_t>(step));
  }
  std::string WriteAt(Checkpointer& checkpointer, int64_t step) const { return Write(checkpointer, StateAt(step)); }
  std::string Write(Checkpointer& checkpointer, const RunState& state) const {
    return checkpointer.Write(*StoreAt(state.version.value()), state, {AllBlobs(model), [](BlobId) {}}).value();
  }
  std::string FolderOf(int64_t step) const { return absl::StrCat(directory, "/step-0000000", step); }
  absl::StatusOr<RunState> Load() const {
    const std::unique_ptr<Store> store = Store::Create(model, run).value();
    return Open()->LoadLatest(*store);
  }

  TempDir dir;
  RunConfig run;
  ModelSpec model;
  std::string directory;
};

inline std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CHECKPOINTER_FIXTURE_H_
