#include "eps_server/service/worker_messages.h"

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "common/schedule/chunk_range.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

TEST(WorkerMessagesTest, APageOnAllAddressesIsWhereItsWorkerComesFrom) {
  EXPECT_EQ(PageAddress("0.0.0.0:9465", "ipv4:10.0.0.7:4711"), "10.0.0.7:9465");
  EXPECT_EQ(PageAddress("[::]:9465", "ipv6:%5Bfd00::7%5D:4711"), "[fd00::7]:9465");
  EXPECT_EQ(PageAddress("[::]:9465", "ipv6:[fd00::7]:4711"), "[fd00::7]:9465");
  EXPECT_EQ(PageAddress("10.0.0.8:9465", "ipv4:10.0.0.7:4711"), "10.0.0.8:9465");
}

TEST(WorkerMessagesTest, APageOnLoopbackIsReachedFromItsOwnMachineAlone) {
  EXPECT_EQ(PageAddress("127.0.0.1:9465", "ipv4:127.0.0.1:4711"), "127.0.0.1:9465");
  EXPECT_EQ(PageAddress("[::1]:9465", "ipv6:%5B::1%5D:4711"), "[::1]:9465");
  EXPECT_EQ(PageAddress("127.0.0.1:9465", "ipv4:10.0.0.7:4711"), "");
}

TEST(WorkerMessagesTest, AnOfferIsOfSomeChunks) {
  proto::Offer offer;
  offer.set_incarnation(7);
  offer.set_dtype(2);
  offer.set_first_chunk(3);
  offer.set_num_chunks(2);
  ASSERT_OK_AND_ASSIGN(const ContributionKey key, ToKey(offer, 7));
  EXPECT_EQ(key.chunks, (ChunkRange{3, 2}));
  offer.set_num_chunks(0);  // also: not told
  EXPECT_THAT(ToKey(offer, 7), StatusIs(absl::StatusCode::kInvalidArgument, "offer: num_chunks: 0, want at least 1"));
  offer.set_num_chunks(std::numeric_limits<int32_t>::min());
  EXPECT_THAT(ToKey(offer, 7), StatusIs(absl::StatusCode::kInvalidArgument, "offer: num_chunks: -2147483648"));
  offer.set_num_chunks(1);
  offer.set_first_chunk(-1);
  EXPECT_THAT(ToKey(offer, 7), StatusIs(absl::StatusCode::kInvalidArgument, "offer: first_chunk: -1"));
}

TEST(WorkerMessagesTest, NonsenseStaysWhatItIs) {  // and is refused by CheckWorkerInfo
  for (const char* told : {"", "0.0.0.0", "::", "[", "x"}) EXPECT_EQ(PageAddress(told, ""), told);
}

}  // namespace
}  // namespace eps::server
