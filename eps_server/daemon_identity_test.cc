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
  EXPECT_NE(NewDaemonIdentity("x").incarnation, NewDaemonIdentity("x").incarnation);
  EXPECT_NE(NewDaemonIdentity("x").incarnation, 0u);
}

}  // namespace
}  // namespace eps::server
