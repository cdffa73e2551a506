#include "trireme/comm/elastic_member.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <thread>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/sha256.h"
#include "trireme/comm/elastic_coordinator.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kRestAsk = 10ms;           // between two questions of a member that rests
constexpr auto kCoordinatorTimeout = 2s;  // of an answer; then it is asked again

/// "host:port"; an IPv6 address has brackets.
std::pair<std::string, int> split_address(const std::string& text, const char* what) {
  const std::size_t colon = text.rfind(':');
  int port = 0;
  const char* end = text.data() + text.size();
  if (colon != text.npos && colon > 0) std::from_chars(text.data() + colon + 1, end, port);
  if (port < 1 || port > 65535)
    throw ConfigError(fmt::format("{} is \"{}\", which is no HOST:PORT", what, text),
                      "take what `trireme elastic` prints when it starts");
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, port};
}

std::string join_address(const std::string& host, int port) {
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

}  // namespace

std::optional<MemberOptions> member_from_env() {
  const auto where = env("TRIREME_ELASTIC");
  if (!where) return std::nullopt;
  MemberOptions options{.token = control_token()};
  std::tie(options.host, options.port) = split_address(*where, "TRIREME_ELASTIC");
  if (const auto number = env("TRIREME_MEMBER")) {
    std::from_chars(number->data(), number->data() + number->size(), options.number);
    if (options.number < 1 || options.number > kMostMembers)
      throw ConfigError(
          fmt::format("TRIREME_MEMBER is \"{}\", but members have numbers from 1 to {}", *number, kMostMembers),
          "unset TRIREME_MEMBER: any free number is taken");
  }
  if (const auto seconds = env("TRIREME_HEARTBEAT_MS")) {
    int ms = 0;
    std::from_chars(seconds->data(), seconds->data() + seconds->size(), ms);
    if (ms > 0) options.heartbeat_timeout = std::chrono::milliseconds(ms);
  }
  return options;
}

ElasticMember::ElasticMember(const MemberOptions& options) : options_(options) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  name_ = host;
  TcpControlOptions control{.ranks = kMostMembers + 1,
                            .host = options.host,
                            .port = options.port,
                            .token = options.token,
                            .connect_timeout = options.connect_timeout,
                            .heartbeat_every = std::min<std::chrono::milliseconds>(1s, options.heartbeat_timeout / 4),
                            .heartbeat_timeout = options.heartbeat_timeout};
  constexpr int kTries = 20;  // of numbers that may be taken
  for (int i = 0;; ++i) {
    if (options.number == 0) {
      std::uint32_t drawn = 0;
      const std::string bytes = random_bytes(sizeof drawn);
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&drawn));
      options_.number = 1 + static_cast<int>(drawn % kMostMembers);
    }
    control.rank = options_.number;
    try {
      plane_ = connect_tcp_control(control);
      break;
    } catch (const CommError& error) {
      const bool taken = error.message().find(fmt::format("rank {} ", options_.number)) != std::string::npos;
      if (options.number != 0 || !taken || i >= kTries) throw;
    }
  }
  plane_->listen(
      [this](const Notice& notice) {
        if (notice.rank == 0) coordinator_lost_ = true;
      },
      [this](const std::string& question) {
        const nlohmann::json ask = nlohmann::json::parse(question, nullptr, false);
        if (ask.is_object()) edge_ = std::max(edge_.load(), ask.value("edge", std::int64_t{0}));
        return std::string("{}");
      });
}

ElasticMember::~ElasticMember() { plane_->listen(nullptr, nullptr); }

void ElasticMember::tell(const std::string& what, const std::string& why, std::int64_t step) {
  const nlohmann::json message{
      {"do", what}, {"member", options_.number}, {"epoch", epoch_.load()}, {"why", why}, {"step", step}};
  const int coordinator = 0;
  for (int i = 0; i < 5 && !coordinator_lost_; ++i) {
    if (plane_->ask({&coordinator, 1}, message.dump(), kCoordinatorTimeout)[0]) return;
  }
}

std::optional<ElasticPlace> ElasticMember::wait_for_world(const std::string& why) {
  const int coordinator = 0;
  const std::int64_t left = epoch_.load();
  const nlohmann::json question{
      {"do", "rests"}, {"member", options_.number}, {"epoch", left}, {"host", name_}, {"why", why}};
  while (true) {
    if (coordinator_lost_)
      throw CommError(fmt::format("the coordinator of the elastic world at {} is gone, or has given up this member",
                                  join_address(options_.host, options_.port)),
                      "start `trireme elastic` again: the run goes on from its newest checkpoint");
    const auto text = plane_->ask({&coordinator, 1}, question.dump(), kCoordinatorTimeout)[0];
    const nlohmann::json answer = text ? nlohmann::json::parse(*text, nullptr, false) : nlohmann::json();
    if (answer.is_object() && answer.contains("kind")) {
      const auto kind = static_cast<WorldAnswer::Kind>(answer.at("kind").get<int>());
      if (kind == WorldAnswer::Kind::kEnd) {
        if (answer.at("good").get<bool>()) return std::nullopt;
        throw CommError(fmt::format("the elastic run has ended: {}", answer.at("why").get<std::string>()));
      }
      const std::string meeting = answer.at("meeting");
      if (kind == WorldAnswer::Kind::kWorld && (answer.at("rank") == 0 || !meeting.empty())) {
        epoch_ = answer.at("epoch").get<std::int64_t>();
        return ElasticPlace{.epoch = epoch_,
                            .rank = answer.at("rank"),
                            .ranks = answer.at("ranks"),
                            .local_rank = answer.at("local_rank"),
                            .local_ranks = answer.at("local_ranks"),
                            .meeting = meeting};
      }
    }
    std::this_thread::sleep_for(kRestAsk);
  }
}

// The address from which the coordinator is reached is one that others of its network reach.
std::string ElasticMember::own_address() const {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(options_.host.c_str(), std::to_string(options_.port).c_str(), &hints, &found) != 0 || !found)
    throw CommError(fmt::format("the coordinator's host {} has no address", options_.host));
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);  // connecting one sends nothing
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  char text[INET6_ADDRSTRLEN] = {};
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&mine), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  }
  if (fd >= 0) close(fd);
  freeaddrinfo(found);
  if (text[0] == '\0') throw CommError(fmt::format("no interface of this host leads to {}", options_.host));
  return text;
}

std::unique_ptr<ProcessRank> ElasticMember::join(const ElasticPlace& place, const RanksOptions& options) {
  Launch launch{.kind = Launch::Kind::kTorchrun,
                .rank = place.rank,
                .ranks = place.ranks,
                .local_rank = place.local_rank,
                .local_ranks = -1};
  EpochMeeting epoch{.job_id = fmt::format("{} epoch {}", control_job_id(), place.epoch),
                     .token = options_.token,
                     .listens = {},
                     .called_off = [this] { return wants_edge(); },
                     .heartbeat_timeout = options_.heartbeat_timeout};
  if (place.rank == 0) {
    launch.control_host = own_address();
    epoch.listens = [&](int port) {
      const nlohmann::json message{{"do", "listens"},
                                   {"member", options_.number},
                                   {"epoch", place.epoch},
                                   {"meeting", join_address(launch.control_host, port)}};
      const int coordinator = 0;
      plane_->ask({&coordinator, 1}, message.dump(), kCoordinatorTimeout);
    };
  } else {
    std::tie(launch.control_host, launch.control_port) = split_address(place.meeting, "the meeting of the epoch");
  }
  return std::make_unique<ProcessRank>(launch, options, &epoch);
}

}  // namespace trireme::comm
