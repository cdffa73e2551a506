// http/codec.h -- the door to the HTTP library: bodies in, answers out, for one request at a time.
//
// cpp-httplib decodes chunked bodies, compresses answers and frames them. It is a library of its own
// (libtrireme_http, loaded by the first server), because the packaged cpp-httplib brings OpenSSL, zlib and brotli with
// it. It never sees a socket, nor a head that a client wrote: those are read in head.h, and what it is told of them is
// a Framing. Time, limits and connections are the room's own business.
// Depends on: message.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/http/message.h"
#include "trireme/http/post.h"

namespace trireme::http {

/// The bytes behind the head, and the way back.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Some bytes; 0 at the end, -1 when none came in time.
  virtual ssize_t read(char* into, std::size_t size) = 0;
  /// All of them, or false.
  virtual bool write(std::string_view bytes) = 0;
};

struct Framing {
  std::uint64_t content_length = 0;
  bool chunked = false;           // of the request
  bool expects_continue = false;  // the client waits for a word before it sends the body
  bool head_only = false;         // HEAD: no body goes back
  bool gzip = false;              // the client takes it
  bool old_client = false;        // HTTP/1.0, which knows no chunks
  bool close = false;             // the answer is the last one on this connection
  std::uint64_t max_body_bytes = 0;
};

enum class BodyState : std::uint8_t { kWhole, kTooLong, kBroken };

class Codec {
 public:
  /// Called once, when the body has been read or could not be. `stream` of what it returns writes to the client
  /// it is given.
  using Answer = std::function<Response(BodyState state, std::string body)>;
  /// How a stream of the answer is run; true when it came to its end.
  using Stream = std::function<bool(const Response& response, const std::function<bool(std::string_view)>& write)>;

  virtual ~Codec() = default;
  /// False when the connection is of no more use.
  virtual bool exchange(Wire& wire, const Framing& framing, const Answer& answer, const Stream& stream) const = 0;
  /// As a client (post.h).
  virtual PostAnswer post(const PostRequest& request) const = 0;
};

inline constexpr const char* kCodecEntry = "trireme_http_codec";
using CodecEntry = const Codec*();

}  // namespace trireme::http
