// What only a plane over TCP must do: come and go, meet strangers, lose ranks and servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <random>

#include "tests/comm/control/planes.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/control/wire.h"

namespace trireme::comm {
namespace {

using namespace control;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A connection that says what a test wants, whether or not a rank would.
class Stranger {
 public:
  explicit Stranger(int port) : fd_(connect_once("127.0.0.1", port, deadline(), why_)) { EXPECT_TRUE(fd_) << why_; }

  bool say(std::string_view bytes) { return send_all(fd_, bytes, deadline()); }
  /// Comes in as a rank.
  void join(int rank, int ranks) {
    say(preface() + encode({.type = MessageType::kHello, .rank = rank, .number = ranks}));
    EXPECT_EQ(hear().value_or(Message{}).type, MessageType::kWelcome);
  }
  /// The next message; nothing when the server closes the connection.
  std::optional<Message> hear() {
    while (true) {
      if (auto message = in_.next()) return message;
      char buffer[4096];
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(kLong.count())) == 0) ADD_FAILURE() << "the server says nothing";
      const Received received = receive(fd_, buffer, sizeof(buffer));
      if (received.ended) return std::nullopt;
      in_.feed({buffer, received.bytes});
    }
  }

 private:
  static Clock::time_point deadline() { return Clock::now() + kLong; }

  std::string why_;
  Fd fd_;
  Decoder in_{kMaxFrameBytes};
};

// These tests provoke warnings; they are kept, and shown when asked for.
class TcpControl : public testing::Test {
 protected:
  void SetUp() override {
    divert_log([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(line) + "\n";
    });
  }
  void TearDown() override { divert_log(nullptr); }
  std::string logged() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  std::mutex mutex_;
  std::string log_;
};

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.message() + " -> " + error.hint();
  }
  return "no error";
}

// Planes for ranks 0..count-1 of `ranks`: the others are for the test to play.
Planes some_planes(int count, int ranks, TcpControlOptions options = {}) {
  Planes out;
  options.ranks = ranks;
  out.server = make_tcp_control_server(options);
  options.port = out.server->port();
  for (options.rank = 0; options.rank < count; ++options.rank) out.planes.push_back(connect_tcp_control(options));
  return out;
}

TEST_F(TcpControl, SixteenRanksMeet) {
  constexpr int kRanks = 16;
  const auto server = make_tcp_control_server({.ranks = kRanks});
  EXPECT_GT(server->port(), 0);
  run_threads(kRanks, [&](int rank) {
    const auto plane = connect_tcp_control({.rank = rank, .ranks = kRanks, .port = server->port()});
    if (plane->add("arrived", 1) == kRanks) plane->set("all here", "yes");
    EXPECT_EQ(plane->wait_for("all here", kLong), "yes");
  });
  EXPECT_EQ(logged(), "");
}

TEST_F(TcpControl, MeetsByNameAndOverBothProtocols) {
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    std::unique_ptr<TcpControlServer> server;
    try {
      server = make_tcp_control_server({.host = host});
    } catch (const CommError&) {
      if (std::string_view(host) == "::1") continue;  // a machine without IPv6
      throw;
    }
    const auto plane = connect_tcp_control({.host = host, .port = server->port()});
    plane->set("at", host);
    EXPECT_EQ(plane->get("at"), host);
  }
  char name[256];
  ASSERT_EQ(gethostname(name, sizeof(name)), 0);
  const auto server = make_tcp_control_server({.host = name});  // whatever it resolves to, here or elsewhere
  const auto plane = connect_tcp_control({.port = server->port()});
  EXPECT_EQ(plane->add("works", 1), 1);
}

TEST_F(TcpControl, APortInUseIsNamed) {
  const auto server = make_tcp_control_server({});
  const std::string port = std::to_string(server->port());
  EXPECT_THAT(error_of([&] { make_tcp_control_server({.port = server->port()}); }),
              AllOf(HasSubstr("127.0.0.1:" + port), HasSubstr("in use"), HasSubstr("MASTER_PORT")));
}

TEST_F(TcpControl, ClientsWaitForAServerThatStartsLater) {
  const int port = make_tcp_control_server({})->port();  // free again, and most probably for a while
  auto early = std::async(std::launch::async, [&] { return connect_tcp_control({.port = port}); });
  EXPECT_EQ(early.wait_for(50ms), std::future_status::timeout);
  const auto server = make_tcp_control_server({.port = port});
  const auto plane = early.get();
  EXPECT_EQ(plane->get("nothing"), std::nullopt);
}

TEST_F(TcpControl, AServerThatIsNotThereIsNamed) {
  const int port = make_tcp_control_server({})->port();
  EXPECT_THAT(error_of([&] { connect_tcp_control({.rank = 1, .ranks = 2, .port = port, .connect_timeout = 1s}); }),
              AllOf(HasSubstr("rank 1 could not reach the control plane at 127.0.0.1:" + std::to_string(port)),
                    HasSubstr("Connection refused"), HasSubstr("firewall")));
  EXPECT_THAT(
      error_of([&] { connect_tcp_control({.host = "no-such-host.invalid", .port = 1, .connect_timeout = 100ms}); }),
      HasSubstr("no-such-host.invalid:1"));
}

TEST_F(TcpControl, ThoseWhoDoNotBelongAreToldWhy) {
  Planes planes = some_planes(1, 2, {.job_id = "this"});
  const auto refusal = [&](TcpControlOptions options) {
    options.port = planes.server->port();
    return error_of([&] { connect_tcp_control(options); });
  };
  EXPECT_THAT(refusal({.rank = 1, .ranks = 2, .job_id = "that"}), HasSubstr("serves another job"));
  EXPECT_THAT(refusal({.rank = 1, .ranks = 3, .job_id = "this"}), HasSubstr("serves 2 ranks"));
  EXPECT_THAT(refusal({.rank = 0, .ranks = 2, .job_id = "this"}), HasSubstr("another process takes part as rank 0"));
  EXPECT_THROW(connect_tcp_control({.port = planes.server->port(), .job_id = std::string(5000, 'x')}), ConfigError);
  EXPECT_EQ(planes[0].add("unhurt", 1), 1);
  EXPECT_THAT(logged(), AllOf(HasSubstr("refused"), Not(HasSubstr("that"))));
}

TEST_F(TcpControl, AServerOfAnotherKindIsRecognised) {
  const Fd listening = listen_at("127.0.0.1", 0);
  auto refused = std::async(std::launch::async,
                            [&] { return error_of([&] { connect_tcp_control({.port = local_port(listening)}); }); });
  pollfd waiting{listening.get(), POLLIN, 0};
  poll(&waiting, 1, -1);
  const Accepted accepted = accept_from(listening);
  send_all(accepted.fd, "SSH-2.0-OpenSSH_9.2\r\n", Clock::now() + kLong);
  EXPECT_THAT(refused.get(), HasSubstr("does not speak Trireme's protocol (began with \"SSH-2.0-OpenSSH_\")"));
}

TEST_F(TcpControl, AKilledProcessIsLostAtOnce) {
  int ports[2];
  ASSERT_EQ(pipe(ports), 0);
  const pid_t child = fork();  // before this process has threads
  if (child == 0) {
    [&]() noexcept {  // nothing may bring the child back into the test
      int port = 0;
      close(ports[1]);
      if (read(ports[0], &port, sizeof(port)) != sizeof(port)) _exit(1);
      const auto plane = connect_tcp_control({.rank = 1, .ranks = 2, .port = port});
      plane->set("here", "yes");
      raise(SIGKILL);
    }();
  }
  ASSERT_GT(child, 0);
  {
    Planes planes = some_planes(1, 2);
    Ear ear;
    planes[0].listen(ear.on_notice(), nullptr);
    const int port = planes.server->port();
    ASSERT_EQ(write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    EXPECT_THAT(ear.wait_for(1), ElementsAre(HasSubstr("lost 1: rank 1 is lost: it closed the connection without a "
                                                       "good-bye")));
    EXPECT_EQ(planes[0].get("here"), "yes");
    planes[0].listen(nullptr, nullptr);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  close(ports[0]);
  close(ports[1]);
}

TEST_F(TcpControl, LastWordsBeforeABrokenConnectionAreNotLost) {
  Planes planes = some_planes(1, 3);
  Ear ear, late;
  planes[0].listen(ear.on_notice(), nullptr);
  {
    Stranger rank1(planes.server->port());
    rank1.join(1, 3);
    rank1.say(encode({.type = MessageType::kAnnounce, .number = 0, .value = "disk full"}));
  }
  EXPECT_THAT(ear.wait_for(1), ElementsAre("failed 1: disk full"));
  const auto rank2 = connect_tcp_control({.rank = 2, .ranks = 3, .port = planes.server->port()});
  rank2->listen(late.on_notice(), nullptr);
  EXPECT_THAT(late.wait_for(1), ElementsAre("failed 1: disk full"));
  planes[0].listen(nullptr, nullptr);
  rank2->listen(nullptr, nullptr);
}

TEST_F(TcpControl, ASilentRankIsLost) {
  Planes planes = some_planes(1, 2, {.heartbeat_every = 50ms, .heartbeat_timeout = 3s});
  Ear ear;
  planes[0].listen(ear.on_notice(), nullptr);
  Stranger silent(planes.server->port());
  silent.join(1, 2);
  EXPECT_THAT(ear.wait_for(1), ElementsAre(HasSubstr("lost 1: rank 1 is lost: nothing was heard from it for ")));
  EXPECT_THAT(silent.hear().value_or(Message{}).value, HasSubstr("gave it up as lost"));
  EXPECT_EQ(silent.hear(), std::nullopt);
  planes[0].listen(nullptr, nullptr);
}

TEST_F(TcpControl, ASilentServerIsLost) {
  const Fd listening = listen_at("127.0.0.1", 0);
  auto joined = std::async(std::launch::async, [&] {
    return connect_tcp_control({.port = local_port(listening), .heartbeat_every = 50ms, .heartbeat_timeout = 1500ms});
  });
  pollfd waiting{listening.get(), POLLIN, 0};
  poll(&waiting, 1, -1);
  const Accepted accepted = accept_from(listening);
  send_all(accepted.fd, preface() + encode({.type = MessageType::kWelcome}), Clock::now() + kLong);
  const auto plane = joined.get();
  Ear ear;
  plane->listen(ear.on_notice(), nullptr);
  EXPECT_THAT(ear.wait_for(1), ElementsAre(AllOf(HasSubstr("lost 0: the control plane at 127.0.0.1:"),
                                                 HasSubstr("nothing was heard from it for"))));
  EXPECT_THROW(plane->get("key"), CommError);
  plane->listen(nullptr, nullptr);
}

TEST_F(TcpControl, WhenTheServerGoesEveryoneLearnsIt) {
  Planes planes = tcp_planes(3, {.goodbye_timeout = 0ms});
  std::vector<Ear> ears(3);
  for (int rank = 0; rank < 3; ++rank) planes[rank].listen(ears[static_cast<std::size_t>(rank)].on_notice(), nullptr);
  auto waiting = std::async(std::launch::async, [&] { return error_of([&] { planes[1].wait_for("never", kLong); }); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  planes.server.reset();
  EXPECT_THAT(waiting.get(), AllOf(HasSubstr("the control plane at 127.0.0.1:"), HasSubstr("is lost")));
  for (const Ear& ear : ears) {
    EXPECT_THAT(ear.wait_for(1), ElementsAre(AllOf(HasSubstr("lost 0: the control plane at 127.0.0.1:"),
                                                   HasSubstr("(served by rank 0) is lost: rank 0 ended"))));
  }
  EXPECT_THROW(planes[1].set("key", "value"), CommError);
  EXPECT_THROW(planes[2].get("key"), CommError);
  EXPECT_THROW(planes[0].add("key", 1), CommError);
  const int two = 2;
  EXPECT_THAT(planes[1].ask({&two, 1}, "there?", kLong), ElementsAre(std::nullopt));
  planes[1].announce(Notice::Kind::kFailed, "into the void");
  for (int rank = 0; rank < 3; ++rank) planes[rank].listen(nullptr, nullptr);
}

TEST_F(TcpControl, AnEndingServerWaitsForGoodbyes) {
  Planes planes = tcp_planes(3);
  Ear ear;
  planes[1].listen(ear.on_notice(), nullptr);
  auto ending = std::async(std::launch::async, [&] {
    planes.planes[0].reset();
    planes.server.reset();
  });
  ear.wait_for(1);
  EXPECT_EQ(planes[1].add("still served", 1), 1);
  EXPECT_EQ(planes[2].add("still served", 1), 2);
  planes.planes[2].reset();
  EXPECT_THAT(ear.wait_for(2), ElementsAre("left 0: rank 0 left", "left 2: rank 2 left"));
  planes[1].listen(nullptr, nullptr);
  planes.planes[1].reset();
  ending.get();
  EXPECT_EQ(logged(), "");
}

TEST_F(TcpControl, RanksThatComeLateHearWhyTheServingOneFailed) {
  TcpControlOptions options{.rank = 0, .ranks = 3, .connect_timeout = 10s};
  auto server = make_tcp_control_server(options);
  options.port = server->port();
  auto zero = connect_tcp_control(options);
  zero->announce(Notice::Kind::kRefused, "there is no eth7 here");
  auto ending = std::async(std::launch::async, [&] {
    zero.reset();
    server.reset();
  });
  std::this_thread::sleep_for(100ms);  // it is over for rank 0; the others come now
  for (options.rank = 1; options.rank < 3; ++options.rank) {
    Ear ear;
    const auto late = connect_tcp_control(options);
    late->listen(ear.on_notice(), nullptr);
    EXPECT_EQ(ear.wait_for(1).front(), "refused 0: there is no eth7 here");
    late->listen(nullptr, nullptr);
  }
  ending.get();
}

TEST_F(TcpControl, AServerWhoseRankFailedWaitsOnlySoLongForTheOthers) {
  TcpControlOptions options{.ranks = 3, .absent_timeout = 0ms};
  auto server = make_tcp_control_server(options);
  options.port = server->port();
  options.connect_timeout = 100ms;
  auto zero = connect_tcp_control(options);
  zero->announce(Notice::Kind::kFailed, "no more");
  zero.reset();
  server.reset();
  options.rank = 1;
  EXPECT_THAT(error_of([&] { connect_tcp_control(options); }), HasSubstr("could not reach"));
}

TEST_F(TcpControl, AMeetingThatIsCalledOffIsNotWaitedFor) {
  std::atomic<bool> called_off{false};
  TcpControlOptions options{
      .rank = 1, .ranks = 2, .connect_timeout = kLong, .called_off = [&] { return called_off.load(); }};
  // Nobody listens; somebody listens and says nothing.
  const Fd listening = listen_at("127.0.0.1", 0);
  for (const int port : {1, local_port(listening)}) {
    options.port = port;
    called_off = false;
    auto joining = std::async(std::launch::async, [&] { return error_of([&] { connect_tcp_control(options); }); });
    EXPECT_EQ(joining.wait_for(50ms), std::future_status::timeout);
    called_off = true;
    EXPECT_EQ(joining.wait_for(5s), std::future_status::ready);
    EXPECT_THAT(joining.get(), HasSubstr("the meeting was called off"));
  }
}

TEST_F(TcpControl, QuestionsAreAnsweredWhileTheRankIsStuck) {
  Planes planes = tcp_planes(2);
  planes[1].listen(nullptr, [](const std::string&) { return "waiting for \"go\""; });
  auto stuck = std::async(std::launch::async, [&] { return planes[1].wait_for("go", kLong); });
  const int one = 1;
  EXPECT_THAT(planes[0].ask({&one, 1}, "what are you doing?", kLong), ElementsAre("waiting for \"go\""));
  planes[0].set("go", "!");
  EXPECT_EQ(stuck.get(), "!");
  planes[1].listen(nullptr, nullptr);
}

TEST_F(TcpControl, AnAnswerThatDoesNotComeInTimeIsEmpty) {
  Planes planes = some_planes(1, 2);
  Stranger mute(planes.server->port());
  mute.join(1, 2);
  const int one = 1;
  EXPECT_THAT(planes[0].ask({&one, 1}, "?", 30ms), ElementsAre(std::nullopt));
  const Message question = mute.hear().value_or(Message{});
  EXPECT_EQ(question.type, MessageType::kQuestion);
  mute.say(encode({.type = MessageType::kAnswer, .flag = true, .id = question.id, .value = "late"}));
  mute.say(encode({.type = MessageType::kBye}));
  EXPECT_EQ(mute.hear().value_or(Message{}).type, MessageType::kBye);
  EXPECT_EQ(planes[0].get("nothing"), std::nullopt);  // the late answer is taken for no other
}

TEST_F(TcpControl, AFrameTooLargeEndsTheConnection) {
  Planes planes = some_planes(1, 2);
  Ear ear;
  planes[0].listen(ear.on_notice(), nullptr);
  Stranger rank1(planes.server->port());
  rank1.join(1, 2);
  rank1.say(std::string("\xff\xff\xff\x7f", 4));
  EXPECT_THAT(ear.wait_for(1), ElementsAre(AllOf(HasSubstr("lost 1: "), HasSubstr("frame of 2147483647 bytes"))));
  EXPECT_EQ(rank1.hear(), std::nullopt);
  planes[0].listen(nullptr, nullptr);
}

TEST_F(TcpControl, NoiseFromStrangersHurtsNobody) {
  Planes planes = tcp_planes(2);
  Ear ear;
  planes[0].listen(ear.on_notice(), nullptr);
  std::mt19937 random(7);
  std::vector<std::unique_ptr<Stranger>> lingering;
  for (int i = 0; i < 60; ++i) {
    std::string noise(random() % 300, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    auto stranger = std::make_unique<Stranger>(planes.server->port());
    // Every third knows the preface, and every third of those sends a frame of a plausible length.
    if (i % 3 == 0) noise = preface() + (i % 9 == 0 ? std::string("\x40\0\0\0", 4) : "") + noise;
    stranger->say(noise);
    if (i % 2 == 0) lingering.push_back(std::move(stranger));
    EXPECT_EQ(planes[i % 2].add("work goes on", 1), i + 1);
  }
  lingering.clear();
  EXPECT_EQ(planes[1].get("work goes on"), "60");
  EXPECT_TRUE(ear.heard().empty());
  EXPECT_THAT(logged(), HasSubstr("dropped the connection from 127.0.0.1:"));
  planes[0].listen(nullptr, nullptr);
}

// The undefined-behaviour sanitizer looks at objects through a pipe; where none can be had it takes every object for
// broken.
#if !defined(__SANITIZE_ADDRESS__)
TEST_F(TcpControl, RunningOutOfDescriptorsDelaysNewcomersOnly) {
  Planes planes = some_planes(1, 2);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(64, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<Fd> taken;
  while (true) {
    Fd fd(dup(STDERR_FILENO));
    if (!fd) break;
    taken.push_back(std::move(fd));
  }
  taken.pop_back();  // one for the near end of the connection; the server finds none for the far end
  Stranger newcomer(planes.server->port());
  for (int i = 0; i < 2000 && logged().empty(); ++i) {
    planes[0].add("work goes on", 1);
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_THAT(logged(), HasSubstr("cannot take another connection: Too many open files"));
  taken.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  newcomer.join(1, 2);
}
#endif

}  // namespace
}  // namespace trireme::comm
