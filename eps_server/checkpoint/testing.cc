#include "eps_server/checkpoint/testing.h"

#include <algorithm>
#include <bit>

#include "absl/types/span.h"
#include "common/testing/status_matchers.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

float ValueAt(uint64_t seed, BlobId blob, int kind, int64_t i) {
  uint64_t bits = (seed * 1000003 + static_cast<uint64_t>(blob.value()) * 7919 + static_cast<uint64_t>(kind)) *
                      0x9E3779B97F4A7C15u +
                  static_cast<uint64_t>(i) * 0xD1B54A32D192ED03u;
  bits ^= bits >> 29;
  bits *= 0xBF58476D1CE4E5B9u;
  // Any sign and fraction; not infinite, not NaN, and room above, where a wire form rounds up.
  uint32_t word = static_cast<uint32_t>(bits >> 32);
  if ((word >> 23 & 0xFF) >= 0xFE) word &= 0xBFFFFFFF;
  if (i == 1) word = 0x80000000;
  if (i == 2) word = 1;
  return std::bit_cast<float>(word);
}

std::vector<float> ReadAll(const Store& store, const BlobSpec& blob, int kind, Version version) {
  std::vector<float> values(static_cast<size_t>(blob.num_elems));
  if (kind < 0) {
    EXPECT_OK(store.ReadMaster(blob.id, version, 0, absl::MakeSpan(values)));
  } else {
    values = ReadMoment(store, blob, kind, 0, blob.num_elems);
  }
  return values;
}

// Of moments it is in no file, and in fp8 not always zero.
bool IsPadding(const BlobSpec& blob, int64_t elem) {
  return std::none_of(blob.tensors.begin(), blob.tensors.end(), [&](const TensorSpec& tensor) {
    return elem >= tensor.offset_elems && elem < tensor.offset_elems + tensor.num_elems();
  });
}

}  // namespace

std::unique_ptr<Store> FilledStore(const ModelSpec& model, const RunConfig& run, Version version, uint64_t seed) {
  std::unique_ptr<Store> store = Store::Create(model, run).value();
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.num_elems()));
      for (int kind = -1; kind < (blob.frozen ? 0 : store->num_moments()); ++kind) {
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = ValueAt(blob.frozen ? 0 : seed, blob.id, kind, tensor.offset_elems + static_cast<int64_t>(i));
        }
        if (kind < 0) {
          EXPECT_OK(store->LoadMaster(blob.id, version, tensor.offset_elems, values));
        } else {
          EXPECT_OK(store->LoadMoment(blob.id, kind, tensor.offset_elems, values));
        }
      }
    }
    store->Publish(blob.id, version);
  }
  return store;
}

void ExpectSameTensors(const ModelSpec& model, const Store& a, const Store& b, Version version) {
  ASSERT_EQ(a.num_moments(), b.num_moments());
  for (const BlobSpec& blob : model.blobs) {
    for (int kind = -1; kind < (blob.frozen ? 0 : a.num_moments()); ++kind) {
      const std::vector<float> of_a = ReadAll(a, blob, kind, version);
      const std::vector<float> of_b = ReadAll(b, blob, kind, version);
      for (size_t i = 0; i < of_a.size(); ++i) {
        if (kind >= 0 && IsPadding(blob, static_cast<int64_t>(i))) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(of_a[i]), std::bit_cast<uint32_t>(of_b[i]))
            << blob.name << " element " << i << (kind < 0 ? " of the master" : " of moment ") << kind;
      }
    }
  }
}

std::vector<BlobId> AllBlobs(const ModelSpec& model) {
  std::vector<BlobId> blobs;
  for (const BlobSpec& blob : model.blobs) blobs.push_back(blob.id);
  return blobs;
}

}  // namespace eps::server
