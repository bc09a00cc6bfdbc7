#include "eps_server/daemon_identity.h"

#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(DaemonIdentityTest, ARunIsCalledAsTheLastPartOfItsFolder) {
  EXPECT_EQ(NewDaemonIdentity("/data/runs/books").run, "books");
  EXPECT_EQ(NewDaemonIdentity("runs/books/").run, "books");
  EXPECT_EQ(NewDaemonIdentity("runs/books/.").run, "books");
  EXPECT_EQ(NewDaemonIdentity("/data/b\xc3\xbc"
                              "cher\n")
                .run,
            "b??cher?");
}

TEST(DaemonIdentityTest, NoTwoDaemonsHaveTheSameNumber) {
  const DaemonIdentity one = NewDaemonIdentity("x"), other = NewDaemonIdentity("x");
  EXPECT_NE(one.incarnation, other.incarnation);
  EXPECT_NE(one.page_incarnation, other.page_incarnation);
  EXPECT_NE(one.incarnation, one.page_incarnation);
  EXPECT_NE(one.incarnation, 0u);
  EXPECT_NE(one.page_incarnation, 0u);
}

}  // namespace
}  // namespace eps::server
