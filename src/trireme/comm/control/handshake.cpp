#include "trireme/comm/control/handshake.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"
#include "trireme/comm/control/token.h"

namespace trireme::comm::control {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstPause = 20ms, kLongestPause = 500ms;
constexpr std::size_t kMaxJobIdBytes = kMaxHelloBytes / 4;
constexpr auto kQuietWait = 5s;   // a wait longer than this is worth a line in the log
constexpr auto kCallLook = 10ms;  // between two looks whether the meeting was called off
// To a host that is cut off, or an address that its name leads to no longer, a connection is only tried and nothing is
// heard: not until the deadline at a time.
constexpr std::chrono::milliseconds kOneTry = 5s, kOneTryWhileCalled = 500ms;

void refrain(const TcpControlOptions& options) {
  if (!options.called_off || !options.called_off()) return;
  throw CommError(
      fmt::format("rank {} no longer joins {}: the meeting was called off", options.rank, describe(options)));
}

// Speaks to whoever took the connection. Nothing, with the reason in `why`, when trying again may help.
std::optional<Handshake> greet(Fd fd, const TcpControlOptions& options, Clock::time_point deadline, std::string& why) {
  Handshake handshake{.fd = std::move(fd)};
  const bool has_token = !options.token.empty();
  Greeting greeting{.rank_nonce = has_token ? random_bytes(kNonceBytes) : "",
                    .job_id = options.job_id,
                    .rank = options.rank,
                    .ranks = options.ranks};
  const Message hello{.type = MessageType::kHello,
                      .flag = has_token,
                      .rank = options.rank,
                      .number = options.ranks,
                      .key = options.job_id,
                      .value = greeting.rank_nonce};
  if (!send_all(handshake.fd, preface() + encode(hello), deadline)) {
    why = "the connection broke at once";
    return std::nullopt;
  }
  std::array<char, 4096> buffer;
  while (true) {
    pollfd waiting{handshake.fd.get(), POLLIN, 0};
    const auto look = options.called_off ? std::min(deadline, Clock::now() + kCallLook) : deadline;
    const bool quiet = poll(&waiting, 1, poll_timeout_ms(look)) == 0;
    refrain(options);
    if (quiet && Clock::now() < deadline) continue;
    const Received received = receive(handshake.fd, buffer.data(), buffer.size());
    handshake.in.feed({buffer.data(), received.bytes});
    if (const auto message = handshake.in.next()) {
      if (message->type == MessageType::kChallenge && has_token && greeting.server_nonce.empty()) {
        greeting.server_nonce = message->key;
        if (!same_secret(message->value, prove(options.token, Prover::kServer, greeting))) {
          throw WireError(
              "it does not know this process's token; give all ranks the same, or look at who listens there");
        }
        const Message proof{.type = MessageType::kProof, .value = prove(options.token, Prover::kRank, greeting)};
        if (send_all(handshake.fd, encode(proof), deadline)) continue;
        why = "the connection broke while tokens were compared";
        return std::nullopt;
      }
      if (message->type == MessageType::kWelcome && (!has_token || !greeting.server_nonce.empty())) return handshake;
      if (message->type == MessageType::kRefused) throw WireError(message->value);
      throw WireError("it answered with something other than a welcome");
    }
    if (received.ended) {
      why = "it closed the connection before a word of welcome";
      return std::nullopt;
    }
    // Not earlier: a server that is only slow would see a rank that came and went without a good-bye.
    if (received.bytes == 0 && Clock::now() >= deadline) {
      why = "it took the connection and did not answer";
      return std::nullopt;
    }
  }
}

}  // namespace

std::string describe(const TcpControlOptions& options) {
  return fmt::format("the control plane at {}:{} (served by rank 0)", options.host, options.port);
}

Handshake shake_hands(const TcpControlOptions& options) {
  TRIREME_CHECK(options.rank >= 0 && options.rank < options.ranks, "there is no rank {} among {}", options.rank,
                options.ranks);
  if (options.job_id.size() > kMaxJobIdBytes) {
    throw ConfigError(
        fmt::format("the job id has {} bytes; at most {} are allowed", options.job_id.size(), kMaxJobIdBytes),
        "set TRIREME_JOB_ID to something shorter");
  }
  TRIREME_CHECK(options.port > 0, "a client must be told the server's port");
  const auto begin = Clock::now(), deadline = begin + options.connect_timeout;
  std::chrono::milliseconds pause = kFirstPause;
  bool told = false;
  std::string why;
  while (true) {
    const auto patience =
        std::min<Clock::time_point>(deadline, Clock::now() + (options.called_off ? kOneTryWhileCalled : kOneTry));
    if (Fd fd = connect_once(options.host, options.port, patience, why)) {
      try {
        if (auto handshake = greet(std::move(fd), options, deadline, why)) return *std::move(handshake);
      } catch (const WireError& error) {
        throw CommError(fmt::format("rank {} cannot join {}: {}", options.rank, describe(options), error.message()),
                        error.hint());
      }
    }
    if (Clock::now() + pause >= deadline) break;
    if (!told && Clock::now() - begin > kQuietWait) {
      told = true;
      log_info("rank {} keeps trying to reach {} ({})", options.rank, describe(options), why);
    }
    for (const auto next = Clock::now() + pause; Clock::now() < next;) {
      refrain(options);
      std::this_thread::sleep_until(options.called_off ? std::min(next, Clock::now() + kCallLook) : next);
    }
    pause = std::min<std::chrono::milliseconds>(pause * 2, kLongestPause);
  }
  throw CommError(
      fmt::format("rank {} could not reach {} within {:.1f} s: {}", options.rank, describe(options),
                  std::chrono::duration<double>(options.connect_timeout).count(), why),
      fmt::format(
          "check that rank 0 runs on {} and that no firewall closes port {} between the hosts; another place is "
          "chosen with MASTER_ADDR and MASTER_PORT",
          options.host, options.port));
}

}  // namespace trireme::comm::control
