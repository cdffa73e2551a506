// comm/control/token.h -- who may join: ranks that prove to know the job's token, or else processes of the same user.
//
// The token itself never travels. A rank sends a nonce, the server answers with its own and a proof over both, the rank
// proves the same in turn (HMAC-SHA256): a stranger learns nothing, and a rank trusts no false server either.
// Without a token only processes of this user on this machine come in, which the kernel's table of sockets tells.
// Depends on: base.
#pragma once

#include <string>
#include <string_view>

#include "trireme/comm/control/socket.h"

namespace trireme::comm::control {

inline constexpr std::size_t kNonceBytes = 16, kProofBytes = 32;
inline constexpr std::size_t kMinTokenBytes = 16;

/// Who says that it knows the token; a proof of one cannot be played back as the other's.
enum class Prover : char { kServer = 's', kRank = 'r' };

/// What both sides have said before a proof.
struct Greeting {
  std::string rank_nonce, server_nonce, job_id;
  int rank = 0, ranks = 0;
};
std::string prove(std::string_view token, Prover prover, const Greeting& greeting);

/// Whether the other end of this connection is a socket of this user on this machine.
bool is_own_user(const Fd& connection);

}  // namespace trireme::comm::control
