#include "eps_server/report/digest_log.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/step/step_report.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

// The block has several chunks, and tensors that lie in two of them.
RunConfig SmallRun() {
  RunConfig run;
  run.model = {.num_layers = 1, .d_model = 256, .num_heads = 2, .context = 16, .vocab = 100};
  return run;
}

class DigestLogTest : public testing::Test {
 protected:
  DigestLogTest() {
    for (const BlobSpec& blob : model_.blobs) {
      EXPECT_OK(store_->LoadMaster(blob.id, Version(1), 0, Values(blob, 0.5f)));
      for (int64_t chunk = 0; chunk < blob.num_chunks(); ++chunk) chunks_.emplace_back(blob.id, chunk);
    }
    log_ = *DigestLog::Open(path_, &model_, store_.get());
  }
  std::vector<float> Values(const BlobSpec& blob, float factor) const {
    std::vector<float> values(static_cast<size_t>(blob.num_elems));
    for (size_t i = 0; i < values.size(); ++i) values[i] = factor * static_cast<float>((i * 7 + 3) % 1009);
    return values;
  }
  // `change` is added to one element of `blob`'s gradient.
  void Show(std::pair<BlobId, int64_t> id, BlobId blob = BlobId(-1), int64_t elem = 0, float change = 0) {
    const BlobSpec& spec = model_.blob(id.first);
    std::vector<float> sums = Values(spec, 1);
    if (id.first == blob) sums[static_cast<size_t>(elem)] += change;
    log_->OnSummed(StepId(0), id.first, id.second,
                   absl::MakeConstSpan(sums).subspan(static_cast<size_t>(id.second * kChunkElems),
                                                     static_cast<size_t>(spec.chunk_elems(id.second))));
    log_->OnUpdated(StepId(0), id.first, id.second);
  }
  nlohmann::json Commit(double loss = 1.25) {
    log_->OnCommit({.step = StepId(0), .loss = loss, .tokens = 8});
    EXPECT_OK(log_->status());
    const std::string text = *ReadFile(path_);
    return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
  }

  const TempDir dir_;
  const std::string path_ = dir_.path() + "/digests.jsonl";
  const RunConfig run_ = SmallRun();
  const ModelSpec model_ = *BuildModel(run_.model);
  const std::unique_ptr<Store> store_ = *Store::Create(model_, run_);
  std::vector<std::pair<BlobId, int64_t>> chunks_;
  std::unique_ptr<DigestLog> log_;
};

TEST_F(DigestLogTest, TellsEachTensorOnceInTheModelsOrderWhateverTheOrderOfTheChunks) {
  for (const auto& id : chunks_) Show(id);
  const nlohmann::json first = Commit();
  std::reverse(chunks_.begin(), chunks_.end());
  for (const auto& id : chunks_) Show(id);
  EXPECT_EQ(Commit(), first);
  EXPECT_EQ(first["step"], 0);
  EXPECT_EQ(first["loss"], 1.25);
  size_t index = 0;
  for (const BlobSpec& blob : model_.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      EXPECT_EQ(first["tensors"][index]["name"], tensor.name);
      EXPECT_NE(first["tensors"][index]["gradient"], first["tensors"][index]["master"]);
      ++index;
    }
  }
  EXPECT_EQ(first["tensors"].size(), index);
}

TEST_F(DigestLogTest, AnElementChangesItsTensorAloneAndPaddingNone) {
  for (const auto& id : chunks_) Show(id);
  const nlohmann::json right = Commit();
  for (const BlobSpec& blob : model_.blobs) {
    for (size_t t = 0; t < blob.tensors.size(); ++t) {
      const TensorSpec& tensor = blob.tensors[t];
      const int64_t last = tensor.offset_elems + tensor.num_elems() - 1;
      const int64_t next = t + 1 < blob.tensors.size() ? blob.tensors[t + 1].offset_elems : blob.num_elems;
      for (const int64_t elem : {tensor.offset_elems, last, last + 1}) {
        if (elem > last && elem == next) continue;  // no padding
        for (const auto& id : chunks_) Show(id, blob.id, elem, 1);
        const nlohmann::json wrong = Commit();
        for (size_t i = 0; i < right["tensors"].size(); ++i) {
          const bool is_changed = elem <= last && right["tensors"][i]["name"] == tensor.name;
          EXPECT_EQ(right["tensors"][i] != wrong["tensors"][i], is_changed) << tensor.name << " element " << elem;
        }
      }
    }
  }
}

TEST_F(DigestLogTest, AFrozenTensorHasAMasterOfEveryStepAndNoGradient) {
  RunConfig run = run_;
  run.model.freeze = {"transformer.wte.weight"};
  const ModelSpec model = *BuildModel(run.model);
  const std::unique_ptr<Store> store = *Store::Create(model, run);
  const auto digest = [&](float first) {
    const std::unique_ptr<DigestLog> log = *DigestLog::Open(path_, &model, store.get());
    EXPECT_OK(store->LoadMaster(BlobId(0), Version(1), 0, std::vector<float>(8, first)));
    log->OnCommit({.step = StepId(0)});
    return nlohmann::json::parse(*ReadFile(path_))["tensors"][0];
  };
  const nlohmann::json one = digest(1), again = digest(1), two = digest(2);
  EXPECT_EQ(one["name"], "transformer.wte.weight");
  EXPECT_EQ(one, again);
  EXPECT_NE(one["master"], two["master"]);
  EXPECT_EQ(one["gradient"], two["gradient"]);
}

TEST_F(DigestLogTest, ALossThatIsNotANumberIsNull) {
  for (const auto& id : chunks_) Show(id);
  EXPECT_TRUE(Commit(std::nan(""))["loss"].is_null());
}

TEST_F(DigestLogTest, AFileThatCannotBeWrittenIsNamed) {
  const auto log = DigestLog::Open(dir_.path() + "/none/digests.jsonl", &model_, store_.get());
  EXPECT_THAT(log.status(), StatusIs(absl::StatusCode::kNotFound, "digests.jsonl"));
}

}  // namespace
}  // namespace eps::server
