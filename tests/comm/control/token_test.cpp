// Who may join a control plane: those who prove to know the token, and nobody learns it by listening.
#include "trireme/comm/control/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/comm/control/planes.h"
#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/base/log.h"
#include "trireme/comm/control/switchboard.h"

namespace trireme::comm {
namespace {

using namespace control;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kToken = "a secret of the job's own", kOther = "a secret of another job";

TEST(Token, RanksThatKnowItMeet) {
  Planes planes = tcp_planes(3, {.token = kToken});
  planes[2].set("key", "value");
  EXPECT_EQ(planes[1].wait_for("key", kLong), "value");
}

TEST(Token, OthersAreRefusedAndLogged) {
  std::mutex mutex;
  std::string log;
  divert_log([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    log += std::string(line) + "\n";
  });
  const auto server = make_tcp_control_server({.ranks = 2, .token = kToken});
  const auto join = [&](const std::string& token) {
    return message_of<CommError>([&] {
      connect_tcp_control({.rank = 1, .ranks = 2, .port = server->port(), .token = token, .connect_timeout = kLong});
    });
  };
  EXPECT_THAT(join(""), HasSubstr("rank 0 has a token and this process has none"));
  EXPECT_THAT(join(kOther), HasSubstr("does not know this process's token"));
  const auto plane = connect_tcp_control({.rank = 1, .ranks = 2, .port = server->port(), .token = kToken});
  plane->set("still", "served");
  divert_log(nullptr);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(log, HasSubstr("control plane: refused 127.0.0.1:"));
  EXPECT_THAT(log, Not(HasSubstr(kToken)));
}

TEST(Token, ARankWithATokenTrustsNoServerWithoutOne) {
  const auto server = make_tcp_control_server({.ranks = 1});
  EXPECT_THAT(message_of<CommError>([&] { connect_tcp_control({.port = server->port(), .token = kToken}); }),
              HasSubstr("this process has a token"));
}

class TokenExchange : public testing::Test {
 protected:
  /// What the server says to this caller.
  std::vector<Message> say(Switchboard::Caller caller, const Message& message) {
    switchboard.receive(caller, message, Clock::now());
    std::vector<Message> heard;
    for (auto& outgoing : switchboard.take_outgoing()) heard.push_back(outgoing.message);
    return heard;
  }
  Message hello(int rank) const {
    return {
        .type = MessageType::kHello, .flag = true, .rank = rank, .number = 2, .value = std::string(kNonceBytes, 'n')};
  }
  Greeting greeting(int rank, const Message& challenge) const {
    return {.rank_nonce = std::string(kNonceBytes, 'n'), .server_nonce = challenge.key, .rank = rank, .ranks = 2};
  }

  Switchboard switchboard{TcpControlOptions{.ranks = 2, .job_id = "", .token = kToken}};
};

TEST_F(TokenExchange, BothSidesProveIt) {
  const auto challenge = say(1, hello(1));
  ASSERT_EQ(challenge.size(), 1u);
  EXPECT_EQ(challenge[0].type, MessageType::kChallenge);
  EXPECT_EQ(challenge[0].value, prove(kToken, Prover::kServer, greeting(1, challenge[0])));
  EXPECT_FALSE(switchboard.knows(1));
  const auto welcome =
      say(1, {.type = MessageType::kProof, .value = prove(kToken, Prover::kRank, greeting(1, challenge[0]))});
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].type, MessageType::kWelcome);
}

TEST_F(TokenExchange, NeitherReplaysNorReflectionsHelp) {
  const auto first = say(1, hello(1)).at(0);
  const std::string good = prove(kToken, Prover::kRank, greeting(1, first));
  say(1, {.type = MessageType::kProof, .value = good});
  // The same proof on another connection, which has another nonce.
  const auto second = say(2, hello(0)).at(0);
  EXPECT_NE(second.key, first.key);
  EXPECT_EQ(say(2, {.type = MessageType::kProof, .value = good}).at(0).type, MessageType::kRefused);
  // The server's own proof.
  const auto third = say(3, hello(0)).at(0);
  EXPECT_EQ(say(3, {.type = MessageType::kProof, .value = third.value}).at(0).type, MessageType::kRefused);
  // A proof of one rank for another.
  const auto fourth = say(4, hello(0)).at(0);
  EXPECT_EQ(
      say(4, {.type = MessageType::kProof, .value = prove(kToken, Prover::kRank, greeting(1, fourth))}).at(0).type,
      MessageType::kRefused);
  EXPECT_THROW(say(5, {.type = MessageType::kProof, .value = good}), WireError) << "without a hello";
  EXPECT_THROW(say(6, {.type = MessageType::kSet, .key = "k"}), WireError);
}

TEST(Token, WithoutOneStrangersAreRefused) {
  Switchboard switchboard{TcpControlOptions{.ranks = 2, .job_id = ""}};
  switchboard.distrust(7);
  switchboard.receive(7, {.type = MessageType::kHello, .rank = 1, .number = 2}, Clock::now());
  EXPECT_THAT(switchboard.take_outgoing().at(0).message.value,
              HasSubstr("only processes of its user on its machine may join"));
  switchboard.receive(8, {.type = MessageType::kHello, .rank = 1, .number = 2}, Clock::now());
  EXPECT_EQ(switchboard.take_outgoing().at(0).message.type, MessageType::kWelcome);
}

class TokenFile : public OwnFolder {};

TEST_F(TokenFile, IsReadUnlessOthersCanReadIt) {
  const std::string path = (folder_ / "token").string();
  std::ofstream(path) << "  " << kToken << "\n";
  setenv("TRIREME_TOKEN_FILE", path.c_str(), 1);
  chmod(path.c_str(), 0640);
  EXPECT_THAT(message_of<ConfigError>([] { control_token(); }), HasSubstr("is open to others: mode 0640"));
  chmod(path.c_str(), 0600);
  EXPECT_EQ(control_token(), kToken);
  std::ofstream(path) << "short";
  EXPECT_THAT(message_of<ConfigError>([] { control_token(); }),
              HasSubstr("has 5 characters; a token needs at least 16"));
  setenv("TRIREME_TOKEN", "the variable beats the file", 1);
  EXPECT_EQ(control_token(), "the variable beats the file");
  unsetenv("TRIREME_TOKEN");
  unsetenv("TRIREME_TOKEN_FILE");
  EXPECT_EQ(control_token(), "");
}

}  // namespace
}  // namespace trireme::comm
