#include "trireme/data/corpus/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

constexpr std::size_t kPiece = 1 << 20;

}  // namespace

Compression compression_of(const std::filesystem::path& path) {
  return path.extension() == ".gz"    ? Compression::kGzip
         : path.extension() == ".zst" ? Compression::kZstd
                                      : Compression::kNone;
}

/// What either library gives for some bytes: how many it took and made, and whether a member or frame ended.
struct Decompressor::Stream {
  struct Step {
    std::size_t taken = 0, made = 0;
    bool ended = false;
    const char* error = nullptr;
  };
  virtual ~Stream() = default;
  virtual Step step(std::string_view in, char* out, std::size_t room) = 0;
};

namespace {

template <typename Base>
struct GzipStream : Base {
  GzipStream() {
    constexpr int kGzipOnly = 16;  // added to the window's bits
    if (inflateInit2(&zlib, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { inflateEnd(&zlib); }
  typename Base::Step step(std::string_view in, char* out, std::size_t room) override {
    in = in.substr(0, std::numeric_limits<uInt>::max());
    zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));  // NOLINT: zlib reads it only
    zlib.avail_in = static_cast<uInt>(in.size());
    zlib.next_out = reinterpret_cast<Bytef*>(out);
    zlib.avail_out = static_cast<uInt>(room);
    const int status = inflate(&zlib, Z_NO_FLUSH);
    const bool ended = status == Z_STREAM_END;
    const char* error = ended || status == Z_OK || status == Z_BUF_ERROR ? nullptr
                        : zlib.msg != nullptr                            ? zlib.msg
                                                                         : zError(status);
    const typename Base::Step done{in.size() - zlib.avail_in, room - zlib.avail_out, ended, error};
    if (ended) inflateReset(&zlib);
    return done;
  }
  z_stream zlib{};
};

template <typename Base>
struct ZstdStream : Base {
  ZstdStream() : zstd(ZSTD_createDStream()) {
    if (zstd == nullptr) throw std::bad_alloc();
  }
  ~ZstdStream() override { ZSTD_freeDStream(zstd); }
  typename Base::Step step(std::string_view in, char* out, std::size_t room) override {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out, room, 0};
    const std::size_t status = ZSTD_decompressStream(zstd, &to, &from);
    if (ZSTD_isError(status)) return {from.pos, to.pos, false, ZSTD_getErrorName(status)};
    return {from.pos, to.pos, status == 0, nullptr};
  }
  ZSTD_DStream* zstd;
};

}  // namespace

Decompressor::Decompressor(Compression compression, std::string_view bytes, std::string_view source)
    : bytes_(bytes), source_(source) {
  TRIREME_CHECK(compression != Compression::kNone, "{} is not compressed", source);
  if (compression == Compression::kGzip) {
    stream_ = std::make_unique<GzipStream<Stream>>();
  } else {
    stream_ = std::make_unique<ZstdStream<Stream>>();
  }
}

Decompressor::~Decompressor() = default;

void Decompressor::fail(std::string_view what, std::string hint) const {
  throw formats::FormatError(fmt::format("{}: {} (byte {})", source_, what, at_), std::move(hint));
}

bool Decompressor::read(std::string& out) {
  const std::size_t before = out.size();
  out.resize(before + kPiece);
  std::size_t made = 0;
  while (made == 0 && (at_ < bytes_.size() || inside_)) {
    const Stream::Step done = stream_->step(bytes_.substr(at_), out.data() + before, kPiece);
    at_ += done.taken;
    made = done.made;
    if (done.error != nullptr)
      fail(fmt::format("is damaged or has another format: {}", done.error),
           "unpack it with gzip -d or zstd -d --long=31, which may say more, and name what comes out");
    if (done.taken == 0 && made == 0 && !done.ended) fail("is cut short: it ends within compressed text");
    inside_ = !done.ended;
  }
  out.resize(before + made);
  made_ += made;
  if (made_ > kAlwaysAllowed && made_ / kMostRatio > bytes_.size())
    fail(fmt::format("unpacks to more than {} times its {} bytes, which text does not", kMostRatio, bytes_.size()),
         "unpack it yourself if it is meant, and name what comes out");
  return made > 0;
}

}  // namespace trireme::data
