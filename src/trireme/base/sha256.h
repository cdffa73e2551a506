// base/sha256.h -- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it: proofs that a rank knows the job's token.
//
// For short texts; files are checked with xxHash.
// Depends on: std.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

using Sha256Digest = std::array<unsigned char, 32>;

Sha256Digest sha256(std::string_view text);
Sha256Digest hmac_sha256(std::string_view key, std::string_view text);

/// Whether both are the same, in a time that does not tell where they differ.
bool same_secret(std::string_view a, std::string_view b);

/// Bytes of the system's random source (getrandom). Throws IoError when it has none.
std::string random_bytes(std::size_t count);

/// Two digits a byte.
std::string to_hex(std::string_view bytes);

}  // namespace trireme
