#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/permutation.h"
#include "trireme/data/rows.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

/// One file's pairs of one side of the split: the first or the last ones of a permutation.
struct FilePairs {
  SharedFile file;
  Permutation order;
  std::int64_t first, count;  // of the permutation
  std::int64_t begin;         // number of the first one among all files' pairs
};

class PairRows final : public Rows {
 public:
  PairRows(std::vector<SharedFile> files, const RowShape& shape, Split split, const SplitRule& rule) : shape_(shape) {
    for (SharedFile& file : files) {
      const std::int64_t pairs = file->documents() / 2, kept = validation_units(pairs, rule.fraction);
      const bool validation = split == Split::kValidation;
      const std::int64_t count = validation ? kept : pairs - kept;
      const Permutation order(split_random(*file, rule.seed), static_cast<std::uint64_t>(pairs));
      if (count > 0) files_.push_back({std::move(file), order, validation ? 0 : kept, count, count_});
      count_ += count;
    }
  }

  std::int64_t count() const override { return count_; }

  void fill(std::int64_t row, std::int64_t, Batch& batch, std::int64_t at, TokenStream::Window& window) const override {
    const auto after = std::ranges::upper_bound(files_, row, {}, &FilePairs::begin);
    const FilePairs& pairs = *(after - 1);
    const auto pair =
        static_cast<std::int64_t>(pairs.order.at(static_cast<std::uint64_t>(pairs.first + row - pairs.begin)));

    std::int64_t used = read(*pairs.file, 2 * pair, shape_.source_length, window.ids);
    std::ranges::copy(window.ids, batch.source.ids.begin() + at * shape_.source_length);
    mark_padding(batch.source, at, used);

    used = read(*pairs.file, 2 * pair + 1, shape_.length, window.ids);
    const bool whole = used == pairs.file->document_begin(2 * pair + 2) - pairs.file->document_begin(2 * pair + 1);
    if (whole && used < shape_.length && (used == 0 || window.ids.back() != shape_.special.eos)) {
      window.ids.push_back(shape_.special.eos);
      ++used;
    }
    std::int64_t* targets = batch.targets.data() + at * shape_.length;
    std::ranges::copy(window.ids, targets);
    if (pairs.file->has_mask()) hide(*pairs.file, 2 * pair + 1, targets, window.learnt);
    std::int64_t* ids = batch.tokens.ids.data() + at * shape_.length;
    ids[0] = shape_.special.bos;
    std::copy_n(window.ids.begin(), std::max<std::int64_t>(used - 1, 0), ids + 1);
    mark_padding(batch.tokens, at, std::max<std::int64_t>(used, 1));
  }

 private:
  /// The first tokens of a document, as many as fit.
  std::int64_t read(const TokenFile& file, std::int64_t document, std::int64_t most,
                    std::vector<std::int32_t>& ids) const {
    const std::int64_t begin = file.document_begin(document);
    const std::int64_t size = std::min(file.document_begin(document + 1) - begin, most);
    ids.resize(static_cast<std::size_t>(size));
    file.read(begin, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int64_t token = begin + static_cast<std::int64_t>(i);
      if (ids[i] >= shape_.vocab_size)
        throw formats::FormatError(
            fmt::format("{}: token {} is {}, but the vocabulary has {} (byte {})", file.path().string(), token, ids[i],
                        shape_.vocab_size, file.byte_of(token)),
            "train a model with the vocabulary of the tokenizer that made the file");
    }
    return size;
  }

  /// What the mask marks is read and not learnt.
  void hide(const TokenFile& file, std::int64_t document, std::int64_t* targets,
            std::vector<std::uint8_t>& learnt) const {
    const std::int64_t begin = file.document_begin(document);
    learnt.resize(static_cast<std::size_t>(std::min(file.document_begin(document + 1) - begin, shape_.length)));
    file.read_mask(begin, learnt);
    for (std::size_t i = 0; i < learnt.size(); ++i) {
      if (learnt[i] == 0) targets[i] = kNoTarget;
    }
  }

  static void mark_padding(TokenRows& rows, std::int64_t at, std::int64_t used) {
    const auto begin = rows.documents.begin() + at * rows.length;
    std::fill(begin, begin + used, 0);
    std::fill(begin + used, begin + rows.length, 1);
  }

  std::vector<FilePairs> files_;
  RowShape shape_;
  std::int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<Rows> pair_rows(std::vector<SharedFile> files, const RowShape& shape, Split split,
                                const SplitRule& rule) {
  return std::make_unique<PairRows>(std::move(files), shape, split, rule);
}

}  // namespace trireme::data
