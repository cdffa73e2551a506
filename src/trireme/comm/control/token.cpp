#include "trireme/comm/control/token.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/comm/control.h"

namespace trireme::comm {
namespace {

std::string read_token_file(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) {
    throw ConfigError(fmt::format("TRIREME_TOKEN_FILE={} cannot be read: {}", path, control::errno_text(errno)),
                      "make one with 'umask 077; head -c 32 /dev/urandom | base64 >FILE', the same for all ranks");
  }
  if ((about.st_mode & 077) != 0 || (about.st_uid != geteuid() && about.st_uid != 0)) {
    throw ConfigError(fmt::format("TRIREME_TOKEN_FILE={} is open to others: mode {:04o}, owner {}", path,
                                  static_cast<unsigned>(about.st_mode & 07777), static_cast<unsigned>(about.st_uid)),
                      fmt::format("chmod 600 {}, and make a new token in it: the old one may have been read", path));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw ConfigError(fmt::format("TRIREME_TOKEN_FILE={} cannot be read", path), "look at its permissions");
  return std::string(trimmed(text.str()));
}

}  // namespace

std::string control_token() {
  const auto given = env("TRIREME_TOKEN"), path = env("TRIREME_TOKEN_FILE");
  if (!given && !path) return {};
  std::string token = given ? *given : read_token_file(*path);
  if (token.size() < control::kMinTokenBytes) {
    throw ConfigError(
        fmt::format("{} has {} characters; a token needs at least {}, or it can be guessed",
                    given ? "TRIREME_TOKEN" : "the token in TRIREME_TOKEN_FILE", token.size(), control::kMinTokenBytes),
        "make one with 'head -c 32 /dev/urandom | base64'");
  }
  return token;
}

namespace control {
namespace {

/// Of a socket's end: the address as the kernel's table writes it, port included.
struct TableEnd {
  std::string v4, v6;  // v4: empty when it is none

  explicit TableEnd(const sockaddr_storage& address) {
    std::uint32_t words[4] = {};
    std::uint16_t port = 0;
    if (address.ss_family == AF_INET) {
      const auto& in = reinterpret_cast<const sockaddr_in&>(address);
      port = ntohs(in.sin_port);
      words[2] = htonl(0xffff);
      words[3] = in.sin_addr.s_addr;
    } else {
      const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
      port = ntohs(in6.sin6_port);
      std::memcpy(words, &in6.sin6_addr, sizeof words);
    }
    const bool mapped = words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
    if (mapped) v4 = fmt::format("{:08X}:{:04X}", words[3], port);
    for (const std::uint32_t word : words) v6 += fmt::format("{:08X}", word);
    v6 += fmt::format(":{:04X}", port);
  }
};

bool table_has(const char* table, const std::string& local, const std::string& remote) {
  if (local.empty() || remote.empty()) return false;
  std::ifstream file(table);
  std::string line;
  while (std::getline(file, line)) {
    // "  0: 0100007F:1F90 0100007F:C3A2 01 00000000:00000000 00:00000000 00000000  1000 ..."
    std::istringstream words(line);
    std::string number, from, to, state, queues, timer, retransmits;
    unsigned long uid = 0;
    if (!(words >> number >> from >> to >> state >> queues >> timer >> retransmits >> uid)) continue;
    if (from == local && to == remote) return uid == geteuid();
  }
  return false;
}

}  // namespace

std::string prove(std::string_view token, Prover prover, const Greeting& greeting) {
  const Sha256Digest digest = hmac_sha256(
      token, fmt::format("trireme {} {} {} {} {} {}", static_cast<char>(prover), greeting.rank, greeting.ranks,
                         to_hex(greeting.rank_nonce), to_hex(greeting.server_nonce), greeting.job_id));
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

bool is_own_user(const Fd& connection) {
  sockaddr_storage near{}, far{};
  socklen_t near_length = sizeof near, far_length = sizeof far;
  if (getsockname(connection.get(), reinterpret_cast<sockaddr*>(&near), &near_length) != 0 ||
      getpeername(connection.get(), reinterpret_cast<sockaddr*>(&far), &far_length) != 0) {
    return false;
  }
  // In the table the other process's socket has our two ends the other way round.
  const TableEnd theirs(far), ours(near);
  return table_has("/proc/self/net/tcp", theirs.v4, ours.v4) || table_has("/proc/self/net/tcp6", theirs.v6, ours.v6);
}

}  // namespace control
}  // namespace trireme::comm
