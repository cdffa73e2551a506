// The only file that knows cpp-httplib (0.11 to 0.14, as packaged: a compiled library).
#include "trireme/http/codec.h"

#include <httplib.h>

#include <algorithm>
#include <array>
#include <utility>

namespace trireme::http {
namespace {

constexpr std::size_t kWorthCompressing = 1024;

// What the library reads: first the head that we write for it, then the body from the wire.
class WireStream final : public httplib::Stream {
 public:
  WireStream(Wire& wire, std::string head) : wire_(wire), head_(std::move(head)) {}

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !failed_; }
  ssize_t read(char* into, size_t size) override {
    if (head_read_ < head_.size()) {
      const std::size_t bytes = head_.copy(into, size, head_read_);
      head_read_ += bytes;
      return static_cast<ssize_t>(bytes);
    }
    const ssize_t bytes = wire_.read(into, size);
    if (bytes <= 0) {
      failed_ = true;
      return bytes;
    }
    for (ssize_t i = std::max<ssize_t>(0, bytes - 4); i < bytes; ++i) {
      std::ranges::rotate(last_, last_.begin() + 1);
      last_.back() = into[i];
    }
    return bytes;
  }
  ssize_t write(const char* bytes, size_t size) override {
    if (!wire_.write({bytes, size})) {
      failed_ = true;
      return -1;
    }
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return 0; }

  /// The last line was an empty one. The library takes a chunk without its end for the end of the body.
  bool ends_with_empty_line() const { return std::string_view(last_.data(), last_.size()) == "\r\n\r\n"; }

 private:
  Wire& wire_;
  const std::string head_;
  std::size_t head_read_ = 0;
  std::array<char, 4> last_{};
  bool failed_ = false;
};

// A head without anything that a client chose, but for the length.
std::string head_for(const Framing& framing) {
  const bool body = framing.chunked || framing.content_length > 0;
  std::string head = body ? "POST / HTTP/1.1\r\n" : framing.head_only ? "HEAD / HTTP/1.1\r\n" : "GET / HTTP/1.1\r\n";
  if (framing.chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  } else if (body) {
    head += "Content-Length: " + std::to_string(framing.content_length) + "\r\n";
  }
  if (framing.expects_continue) head += "Expect: 100-continue\r\n";
  if (framing.gzip) head += "Accept-Encoding: gzip\r\n";  // brotli as the library sets it takes seconds for a megabyte
  return head + "\r\n";
}

class OneExchange final : private httplib::Server {
 public:
  OneExchange(const Framing& framing, const Codec::Answer& answer, const Codec::Stream& stream)
      : framing_(framing), answer_(answer), stream_(stream) {
    svr_sock_ = 0;  // it does not listen by itself; a stream would otherwise end at once
    set_post_routing_handler([](const httplib::Request&, httplib::Response& out) {
      out.headers.erase("Keep-Alive");
      if (out.status == 204 || out.status == 304) out.headers.erase("Content-Length");
    });
  }

  bool run(Wire& wire) {
    WireStream stream(wire, head_for(framing_));
    if (framing_.chunked || framing_.content_length > 0) {
      Post("/", [&](const httplib::Request& in, httplib::Response& out, const httplib::ContentReader& reader) {
        std::string body;
        bool too_long = false;
        const bool read = reader([&](const char* bytes, std::size_t size) {
          too_long = size > framing_.max_body_bytes - body.size();
          if (!too_long) body.append(bytes, size);
          return !too_long;
        });
        const bool whole = read && (!framing_.chunked || stream.ends_with_empty_line());
        reached_end_ = whole;
        put(answer_(too_long ? BodyState::kTooLong
                    : whole  ? BodyState::kWhole
                             : BodyState::kBroken,
                    std::move(body)),
            in, out);
      });
    } else {
      Get("/",
          [&](const httplib::Request& in, httplib::Response& out) { put(answer_(BodyState::kWhole, {}), in, out); });
    }
    bool closed = false;
    const bool sent = process_request(stream, framing_.close, closed, nullptr);
    return sent && reached_end_ && !closed;
  }

 private:
  void put(Response response, const httplib::Request& in, httplib::Response& out) {
    out.status = response.status;
    std::string type;
    for (auto& [name, value] : response.headers) {
      if (name == "Content-Type") type = value;
      out.headers.emplace(std::move(name), std::move(value));
    }
    const bool compress = !response.stream && response.body.size() >= kWorthCompressing;
    // The library compresses whatever the request allows; `in` is its own object, which is not const.
    if (!compress) const_cast<httplib::Request&>(in).headers.erase("Accept-Encoding");
    if (compress) out.headers.emplace("Vary", "Accept-Encoding");
    if (!response.stream) {
      out.body = std::move(response.body);
      return;
    }
    out.headers.erase("Content-Type");  // set again by the calls below
    auto provide = [this, response = std::move(response)](std::size_t, httplib::DataSink& sink) {
      const auto write = [&](std::string_view bytes) {
        return bytes.empty() || sink.write(bytes.data(), bytes.size());  // an empty piece would end the stream
      };
      if (!stream_(response, write)) return false;
      sink.done();
      return true;
    };
    if (framing_.old_client) {
      out.set_content_provider(type, std::move(provide));
    } else {
      out.set_chunked_content_provider(type, std::move(provide));
    }
  }

  const Framing& framing_;
  const Codec::Answer& answer_;
  const Codec::Stream& stream_;
  bool reached_end_ = true;  // of the request
};

class HttplibCodec final : public Codec {
 public:
  bool exchange(Wire& wire, const Framing& framing, const Answer& answer, const Stream& stream) const override {
    return OneExchange(framing, answer, stream).run(wire);
  }
  PostAnswer post(const PostRequest& request) const override {
    httplib::Client client(request.address.origin);
    if (!client.is_valid()) return {.status = 0, .why = "the address cannot be used"};
    client.set_connection_timeout(request.timeout);
    client.set_read_timeout(request.timeout);
    client.set_write_timeout(request.timeout);
    httplib::Headers headers;
    for (const auto& [name, value] : request.headers) headers.emplace(name, value);
    const httplib::Result result = client.Post(request.address.path, headers, request.body, "application/json");
    if (!result) return {.status = 0, .why = httplib::to_string(result.error())};
    return {.status = result->status, .why = {}};
  }
};

}  // namespace
}  // namespace trireme::http

extern "C" const trireme::http::Codec* trireme_http_codec() {
  static const trireme::http::HttplibCodec codec;
  return &codec;
}
