#include "common/schedule/vnode_batch.h"

#include <vector>

#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::eps::testing::StatusIs;
using ::testing::ElementsAre;

TEST(VnodeBatchTest, ADocumentEndsWhereTheNextOneBeginsOrItsSampleEnds) {
  const std::vector<int32_t> first = {0, 0, 2, 3, 3, 0, 0, 0, 0, 4};
  EXPECT_THAT(*DocumentEnds(first, 5), ElementsAre(2, 2, 3, 5, 5, 4, 4, 4, 4, 5));
  EXPECT_TRUE(DocumentEnds({}, 5)->empty());
}

TEST(VnodeBatchTest, WhatIsNoDocumentIsRefusedByItsIndex) {
  const auto refused = [](const std::vector<int32_t>& first, const std::string& why) {
    EXPECT_THAT(DocumentEnds(first, 3).status(), StatusIs(absl::StatusCode::kInvalidArgument, why));
  };
  refused({1, 1, 1}, "document_first[0]: 1, want 0");
  refused({0, 2, 2}, "document_first[1]: 2, want 1 or 0");
  refused({0, 1, 0}, "document_first[2]: 0, want 2 or 1");
  refused({0, 0, 0, -1, 1, 2}, "document_first[3]: -1, want 0");
}

}  // namespace
}  // namespace eps
