#include "trireme/kernels/sparse/block_layout.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "trireme/base/error.h"
#include "trireme/kernels/sparse/chunk_tiles.h"

namespace trireme::kernels {
namespace {

void check_lists(const BlockLists& lists) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw ConfigError("block layout: " + message);
  };
  require(lists.block >= kSmallestBlock && lists.block % kSmallestBlock == 0,
          fmt::format("blocks of {} tokens; they must be a multiple of {}", lists.block, kSmallestBlock));
  require(lists.tokens > 0 && lists.heads > 0, fmt::format("{} tokens and {} heads", lists.tokens, lists.heads));
  const std::int64_t rows = lists.rows();
  const bool whole = lists.queries == 0 && lists.keys == 0;
  require(whole || (lists.queries > 0 && lists.keys > 0 && std::max(lists.queries, lists.keys) == lists.tokens),
          fmt::format("{} queries and {} keys; the more of them must be its {} tokens", lists.queries, lists.keys,
                      lists.tokens));
  const auto blocks_of = [&](std::int64_t tokens) { return (tokens + lists.block - 1) / lists.block; };
  const std::int64_t query_blocks = whole ? rows : blocks_of(lists.queries),
                     key_blocks = whole ? rows : blocks_of(lists.keys);
  require(static_cast<std::int64_t>(lists.begin.size()) == lists.heads * rows + 1 && lists.begin.front() == 0 &&
              lists.begin.back() == static_cast<std::int64_t>(lists.columns.size()),
          fmt::format("{} lists for {} heads of {} rows of blocks", lists.begin.size(), lists.heads, rows));
  for (std::size_t i = 0; i + 1 < lists.begin.size(); ++i) {
    require(lists.begin[i] <= lists.begin[i + 1], "lists overlap");
    require(static_cast<std::int64_t>(i) % rows < query_blocks || lists.begin[i] == lists.begin[i + 1],
            fmt::format("list {} is of queries beyond {} and not empty", i, lists.queries));
    for (std::int64_t j = lists.begin[i]; j < lists.begin[i + 1]; ++j) {
      const std::int32_t column = lists.columns[static_cast<std::size_t>(j)];
      const bool follows = j == lists.begin[i] || lists.columns[static_cast<std::size_t>(j - 1)] < column;
      require(
          column >= 0 && column < key_blocks && follows,
          fmt::format("block {} of list {} is outside of {} or not behind the one before it", column, i, key_blocks));
    }
  }
}

/// Lists while they are made, in the order in which they are added to.
class DeviceList {
 public:
  explicit DeviceList(std::int64_t lists) : lists_(static_cast<std::size_t>(lists)) {}
  void add(std::int64_t list, std::initializer_list<std::int32_t> numbers) {
    auto& to = lists_[static_cast<std::size_t>(list)];
    to.insert(to.end(), numbers);
  }
  /// Where each begins, in entries of `width` numbers, and the end.
  std::vector<std::int32_t> begins(std::size_t width) const {
    std::vector<std::int32_t> begin{0};
    for (const auto& list : lists_) begin.push_back(begin.back() + static_cast<std::int32_t>(list.size() / width));
    return begin;
  }
  std::vector<std::int32_t> numbers() const {
    std::vector<std::int32_t> all;
    for (const auto& list : lists_) all.insert(all.end(), list.begin(), list.end());
    return all;
  }

 private:
  std::vector<std::vector<std::int32_t>> lists_;
};

/// Tiles of a unit from its chunks of keys with the rows that see them. Chunks that the same rows see are put together:
/// a strip of rows then sees all of a tile or nothing of it.
void add_tiles(std::vector<cpu::AttentionTile>& tiles, std::vector<std::pair<std::int32_t, unsigned>> chunks) {
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const auto& one, const auto& other) { return one.second > other.second; });
  constexpr std::size_t kChunks = std::size(cpu::AttentionTile{}.chunks);
  for (std::size_t first = 0; first < chunks.size(); first += kChunks) {
    cpu::AttentionTile tile{{-1, -1, -1, -1}, 0};
    for (std::size_t j = 0; j < kChunks && first + j < chunks.size(); ++j) {
      const auto& [chunk, rows] = chunks[first + j];
      tile.chunks[j] = chunk;
      for (unsigned i = 0; i < 8; ++i) tile.blocks |= (rows >> i & 1) << (4 * i + j);
    }
    tiles.push_back(tile);
  }
}

at::Tensor numbers_on(at::Device device, const std::vector<std::int32_t>& numbers) {
  return at::tensor(numbers, at::TensorOptions(at::kInt)).to(device);
}

}  // namespace

BlockLayout::BlockLayout(BlockLists lists) : lists_(std::move(lists)) {
  check_lists(lists_);
  const std::int64_t rows = lists_.rows(), small = lists_.block / kSmallestBlock;
  const std::int64_t small_rows = (queries() + kSmallestBlock - 1) / kSmallestBlock,
                     small_columns = (keys() + kSmallestBlock - 1) / kSmallestBlock;
  constexpr std::int64_t kUnitRows = cpu::kAttentionQueryBlock / kSmallestBlock;
  for (std::int64_t head = 0; head < lists_.heads; ++head) {
    for (std::int64_t first = 0; first < small_rows; first += kUnitRows) {
      tile_begin_.push_back(static_cast<std::int64_t>(tiles_.size()));
      std::map<std::int32_t, unsigned> seen;  // chunk of keys: a bit for each 16 rows of the unit
      for (std::int64_t i = 0; i < kUnitRows && first + i < small_rows; ++i) {
        const auto list = static_cast<std::size_t>(head * rows + (first + i) / small);
        for (std::int64_t j = lists_.begin[list]; j < lists_.begin[list + 1]; ++j) {
          const std::int64_t column = lists_.columns[static_cast<std::size_t>(j)] * small;
          for (std::int64_t c = column; c < std::min(column + small, small_columns); ++c)
            seen[static_cast<std::int32_t>(c)] |= 1u << i;
        }
      }
      add_tiles(tiles_, {seen.begin(), seen.end()});
    }
  }
  tile_begin_.push_back(static_cast<std::int64_t>(tiles_.size()));
}

std::size_t BlockLayout::bytes() const {
  return tile_begin_.size() * sizeof(tile_begin_[0]) + tiles_.size() * sizeof(tiles_[0]);
}

const BlockLayout::OnDevice& BlockLayout::on(at::Device device) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [at, lists] : on_devices_) {
    if (at == device) return lists;
  }
  on_devices_.emplace_back(device, make_lists(device));
  return on_devices_.back().second;
}

const BlockLayout::ChunksOnDevice& BlockLayout::chunks_on(at::Device device, std::int64_t group) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [at, lists] : chunks_on_devices_) {
    if (at == std::pair(device, group)) return lists;
  }
  const auto side = [&](const ChunkTiles& tiles) {
    return ChunksOnDevice::Side{numbers_on(device, tiles.chunks), numbers_on(device, tiles.begin),
                                numbers_on(device, tiles.entries)};
  };
  const ChunkTiles queries = chunk_tiles(lists_, ChunkSide::kQueries, 1);
  chunks_on_devices_.emplace_back(
      std::pair(device, group),
      ChunksOnDevice{side(queries), side(chunk_tiles(lists_, ChunkSide::kKeys, group)), queries.tiles});
  return chunks_on_devices_.back().second;
}

BlockLayout::OnDevice BlockLayout::make_lists(at::Device device) const {
  const std::int64_t rows = lists_.rows(), small = lists_.block / kSmallestBlock;
  constexpr std::int64_t kSide = 64 / kSmallestBlock;  // of a tile, in smallest blocks
  const std::int64_t small_rows = (lists_.tokens + kSmallestBlock - 1) / kSmallestBlock,
                     tiles = (small_rows + kSide - 1) / kSide;
  DeviceList by_row(lists_.heads * rows), by_column(lists_.heads * rows);
  DeviceList tile_rows(lists_.heads * tiles), tile_columns(lists_.heads * tiles);
  for (std::int64_t head = 0; head < lists_.heads; ++head) {
    std::vector<std::map<std::int32_t, std::uint32_t>> bits(static_cast<std::size_t>(tiles));
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto list = static_cast<std::size_t>(head * rows + row);
      for (std::int64_t j = lists_.begin[list]; j < lists_.begin[list + 1]; ++j) {
        const std::int32_t column = lists_.columns[static_cast<std::size_t>(j)];
        by_row.add(head * rows + row, {column});
        by_column.add(head * rows + column, {static_cast<std::int32_t>(row)});
        for (std::int64_t r = row * small; r < std::min((row + 1) * small, small_rows); ++r) {
          for (std::int64_t k = column * small; k < std::min((column + 1) * small, small_rows); ++k)
            bits[static_cast<std::size_t>(r / kSide)][static_cast<std::int32_t>(k / kSide)] |=
                std::uint32_t{1} << (4 * (r % kSide) + k % kSide);
        }
      }
    }
    for (std::int64_t row = 0; row < tiles; ++row) {
      for (const auto& [column, mask] : bits[static_cast<std::size_t>(row)]) {
        tile_rows.add(head * tiles + row, {column, static_cast<std::int32_t>(mask)});
        tile_columns.add(head * tiles + column, {static_cast<std::int32_t>(row), static_cast<std::int32_t>(mask)});
      }
    }
  }
  const auto there = [&](const std::vector<std::int32_t>& numbers) { return numbers_on(device, numbers); };
  return {.row_begin = there(by_row.begins(1)),
          .columns = there(by_row.numbers()),
          .column_begin = there(by_column.begins(1)),
          .rows = there(by_column.numbers()),
          .row_tile_begin = there(tile_rows.begins(2)),
          .row_tiles = there(tile_rows.numbers()),
          .column_tile_begin = there(tile_columns.begins(2)),
          .column_tiles = there(tile_columns.numbers()),
          .tile_rows = tiles};
}

}  // namespace trireme::kernels
