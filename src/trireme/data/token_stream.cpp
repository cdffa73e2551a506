#include "trireme/data/token_stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {

TokenStream::TokenStream(std::vector<SharedFile> files, Split split, const SplitRule& rule) : files_(std::move(files)) {
  for (std::size_t number = 0; number < files_.size(); ++number) {
    has_mask_ |= files_[number]->has_mask();
    for (const TokenRun& run : runs_of(*files_[number], split, rule)) {
      stretches_.push_back({static_cast<std::uint32_t>(number), run.begin, tokens_});
      tokens_ += run.end - run.begin;
    }
  }
}

std::size_t TokenStream::stretch_of(std::int64_t token) const {
  const auto after = std::ranges::upper_bound(stretches_, token, {}, &TokenRange::begin);
  return static_cast<std::size_t>(after - stretches_.begin()) - 1;
}

std::int64_t TokenStream::end_of(std::size_t stretch) const {
  return stretch + 1 < stretches_.size() ? stretches_[stretch + 1].begin : tokens_;
}

void TokenStream::read(std::int64_t first, std::int64_t count, bool by_document, Window& window) const {
  TRIREME_CHECK(first >= 0 && count >= 0 && count <= tokens_ - first, "{} tokens from {} on of a line of {}", count,
                first, tokens_);
  window.ids.resize(static_cast<std::size_t>(count));
  window.learnt.resize(has_mask_ ? static_cast<std::size_t>(count) : 0);
  window.begins.clear();
  if (count == 0) return;
  std::size_t number = stretch_of(first);
  for (std::int64_t done = 0; done < count; ++number) {
    const TokenRange& stretch = stretches_[number];
    const TokenFile& file = *files_[stretch.file];
    const std::int64_t skipped = first + done - stretch.begin;
    const std::int64_t at = stretch.from + skipped;
    const std::int64_t taken = std::min(end_of(number) - stretch.begin - skipped, count - done);
    const auto begin = static_cast<std::size_t>(done), size = static_cast<std::size_t>(taken);
    file.read(at, std::span(window.ids).subspan(begin, size));
    if (has_mask_) file.read_mask(at, std::span(window.learnt).subspan(begin, size));
    window.begins.push_back(done);
    if (by_document) {
      std::int64_t next = file.document_of(at) + 1;
      for (std::int64_t token = file.document_begin(next); token < at + taken; token = file.document_begin(++next)) {
        const std::int64_t place = done + token - at;
        if (place > window.begins.back()) window.begins.push_back(place);  // documents may be empty
      }
    }
    done += taken;
  }
}

void TokenStream::check_below(std::int64_t vocabulary, std::int64_t first, const Window& window) const {
  // A maximum is one vector instruction for many tokens; where the token lies is looked for only when one is wrong.
  std::int32_t most = 0;
  for (const std::int32_t id : window.ids) most = std::max(most, id);
  if (most < vocabulary) return;
  const auto found = std::ranges::find(window.ids, most);
  const std::int64_t token = first + (found - window.ids.begin());
  const TokenRange& stretch = stretches_[stretch_of(token)];
  const TokenFile& file = *files_[stretch.file];
  const std::int64_t place = stretch.from + token - stretch.begin;
  throw formats::FormatError(fmt::format("{}: token {} is {}, but the vocabulary has {} (byte {})",
                                         file.path().string(), place, most, vocabulary, file.byte_of(place)),
                             "train a model with the vocabulary of the tokenizer that made the file");
}

}  // namespace trireme::data
