#include "trireme/serve/block_pool.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::serve {
namespace {

using nn::blocks_for;
using nn::kKvBlockSize;
using nn::kNoBlock;

/// The first block that the token at `position` sees.
std::int64_t first_seen_block(std::int64_t window, std::int64_t position) {
  return window > 0 ? std::max<std::int64_t>(0, position - window + 1) / kKvBlockSize : 0;
}

std::uint64_t mix_bits(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::span<const std::int64_t> block_tokens(std::span<const std::int64_t> tokens, std::size_t block) {
  return tokens.subspan(block * kKvBlockSize, kKvBlockSize);
}

}  // namespace

BlockPool::BlockPool(BlockPoolOptions options) : options_(std::move(options)) {
  TRIREME_CHECK(options_.hash_bits >= 0 && options_.hash_bits <= 64, "a hash of {} bits", options_.hash_bits);
  for (const nn::KvCacheGroup& of : options_.groups) {
    Group& group = groups_.emplace_back();
    group.window = of.window;
    group.blocks.resize(static_cast<std::size_t>(of.num_blocks));
    for (std::int64_t block = of.num_blocks; block-- > 0;) group.free.push_back(static_cast<nn::BlockId>(block));
  }
}

std::uint64_t BlockPool::hash_of(PrefixNode parent, std::span<const std::int64_t> tokens) const {
  std::uint64_t hash = mix_bits(parent + 0x9E3779B97F4A7C15);
  for (const std::int64_t token : tokens) hash = mix_bits(hash + static_cast<std::uint64_t>(token));
  return options_.hash_bits == 64 ? hash : hash & ((std::uint64_t{1} << options_.hash_bits) - 1);
}

PrefixNode BlockPool::find(PrefixNode parent, std::span<const std::int64_t> tokens) {
  const auto bucket = by_hash_.find(hash_of(parent, tokens));
  if (bucket == by_hash_.end()) return kNoNode;
  for (const PrefixNode candidate : bucket->second) {
    const Node& node = nodes_.at(candidate);
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return candidate;
    ++collisions_;
  }
  return kNoNode;
}

PrefixNode BlockPool::find_or_add(PrefixNode parent, std::span<const std::int64_t> tokens) {
  if (const PrefixNode found = find(parent, tokens); found != kNoNode) return found;
  const PrefixNode number = next_node_++;
  Node node{.parent = parent,
            .tokens = {tokens.begin(), tokens.end()},
            .hash = hash_of(parent, tokens),
            .blocks = std::vector<nn::BlockId>(groups_.size(), kNoBlock)};
  by_hash_[node.hash].push_back(number);
  nodes_.emplace(number, std::move(node));
  if (parent != kNoNode) use(parent);
  return number;
}

void BlockPool::unuse(PrefixNode number) {
  while (number != kNoNode) {
    Node& node = nodes_.at(number);
    TRIREME_CHECK(node.uses > 0, "prefix node {} is given up once too often", number);
    if (--node.uses > 0) return;
    const PrefixNode parent = node.parent;
    auto& bucket = by_hash_.at(node.hash);
    std::erase(bucket, number);
    if (bucket.empty()) by_hash_.erase(node.hash);
    nodes_.erase(number);
    number = parent;
  }
}

SequenceBlocks BlockPool::begin(std::string_view salt) {
  SequenceBlocks sequence{.tables = std::vector<nn::BlockTable>(groups_.size())};
  if (!options_.prefix_cache) return sequence;
  const std::vector<std::int64_t> letters(salt.begin(), salt.end());
  sequence.root = find_or_add(kNoNode, letters);
  use(sequence.root);
  return sequence;
}

std::int64_t BlockPool::acquire(SequenceBlocks& sequence, std::span<const std::int64_t> tokens) {
  TRIREME_CHECK(sequence.chain.empty() &&
                    std::ranges::all_of(sequence.tables, [](const auto& table) { return table.blocks.empty(); }),
                "a sequence looks for its prefix when it has blocks already");
  if (!options_.prefix_cache || tokens.empty()) return 0;
  std::vector<PrefixNode> chain;
  const std::size_t most = (tokens.size() - 1) / kKvBlockSize;
  for (PrefixNode at = sequence.root; chain.size() < most; chain.push_back(at)) {
    at = find(at, block_tokens(tokens, chain.size()));
    if (at == kNoNode) break;
  }
  // The most blocks such that no group lacks one that the next token sees.
  std::size_t usable = chain.size();
  for (bool again = true; again && usable > 0;) {
    again = false;
    for (std::size_t group = 0; group < groups_.size() && usable > 0; ++group) {
      const auto first = first_seen_block(groups_[group].window, static_cast<std::int64_t>(usable) * kKvBlockSize);
      for (auto block = static_cast<std::size_t>(first); block < usable; ++block) {
        if (nodes_.at(chain[block]).blocks[group] != kNoBlock) continue;
        usable = block;
        again = true;
      }
    }
  }
  chain.resize(usable);
  if (usable == 0) return 0;
  const auto length = static_cast<std::int64_t>(usable) * kKvBlockSize;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    nn::BlockTable& table = sequence.tables[group];
    table.freed = first_seen_block(groups_[group].window, length);
    table.blocks.assign(usable, kNoBlock);
    for (auto block = static_cast<std::size_t>(table.freed); block < usable; ++block) {
      table.blocks[block] = nodes_.at(chain[block]).blocks[group];
      take(group, table.blocks[block]);
    }
  }
  use(chain.back());
  unuse(sequence.root);
  sequence.chain = std::move(chain);
  return length;
}

void BlockPool::take(std::size_t group, nn::BlockId id) {
  Block& block = groups_[group].blocks[static_cast<std::size_t>(id)];
  if (block.refs++ == 0) groups_[group].cached.erase({block.released, id});
}

void BlockPool::give_up(std::size_t group, nn::BlockId id) {
  Block& block = groups_[group].blocks[static_cast<std::size_t>(id)];
  TRIREME_CHECK(block.refs > 0, "block {} is given up, but nobody holds it", id);
  if (--block.refs > 0) return;
  if (block.node == kNoNode) {
    groups_[group].free.push_back(id);
  } else {
    block.released = ++clock_;
    groups_[group].cached.insert({block.released, id});
  }
}

nn::BlockId BlockPool::allocate(std::size_t number) {
  Group& group = groups_[number];
  if (group.free.empty()) {
    const nn::BlockId evicted = group.cached.begin()->second;
    group.cached.erase(group.cached.begin());
    Block& block = group.blocks[static_cast<std::size_t>(evicted)];
    nodes_.at(block.node).blocks[number] = kNoBlock;
    unuse(std::exchange(block.node, kNoNode));
    group.free.push_back(evicted);
    ++evictions_;
  }
  const nn::BlockId id = group.free.back();
  group.free.pop_back();
  group.blocks[static_cast<std::size_t>(id)].refs = 1;
  return id;
}

bool BlockPool::reserve(SequenceBlocks& sequence, std::int64_t length) {
  const auto missing = [&](std::size_t group) {
    return std::max<std::int64_t>(0,
                                  blocks_for(length) - static_cast<std::int64_t>(sequence.tables[group].blocks.size()));
  };
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (missing(group) > available(group)) return false;
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (std::int64_t left = missing(group); left > 0; --left) {
      sequence.tables[group].blocks.push_back(allocate(group));
    }
  }
  return true;
}

void BlockPool::commit(SequenceBlocks& sequence, std::span<const std::int64_t> tokens, std::int64_t computed) {
  if (!options_.prefix_cache) return;
  const auto full = static_cast<std::size_t>(computed / kKvBlockSize);
  while (sequence.chain.size() < full) {
    const std::size_t block = sequence.chain.size();
    const PrefixNode parent = tail(sequence);
    const PrefixNode number = find_or_add(parent, block_tokens(tokens, block));
    use(number);
    unuse(parent);
    sequence.chain.push_back(number);
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      const nn::BlockId id = sequence.tables[group].blocks[block];
      nn::BlockId& known = nodes_.at(number).blocks[group];
      // Where two sequences have computed the same, the first one's block is the one that is found.
      if (id == kNoBlock || known != kNoBlock) continue;
      known = id;
      groups_[group].blocks[static_cast<std::size_t>(id)].node = number;
      use(number);
    }
  }
}

void BlockPool::trim(SequenceBlocks& sequence, std::int64_t length) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    nn::BlockTable& table = sequence.tables[group];
    const auto end =
        std::min(first_seen_block(groups_[group].window, length), static_cast<std::int64_t>(table.blocks.size()));
    for (; table.freed < end; ++table.freed) {
      give_up(group, std::exchange(table.blocks[static_cast<std::size_t>(table.freed)], kNoBlock));
    }
  }
}

void BlockPool::release(SequenceBlocks& sequence) {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    nn::BlockTable& table = sequence.tables[group];
    // The deepest first: a prefix is evicted from its end.
    for (auto block = table.blocks.rbegin(); block != table.blocks.rend(); ++block) {
      if (*block != kNoBlock) give_up(group, *block);
    }
    table = {};
  }
  if (options_.prefix_cache) unuse(tail(sequence));
  sequence.chain.clear();
  sequence.root = kNoNode;
}

BlockPool::Count BlockPool::count(std::size_t number) const {
  const Group& group = groups_[number];
  Count count{.all = static_cast<std::int64_t>(group.blocks.size()),
              .free = static_cast<std::int64_t>(group.free.size()),
              .cached = static_cast<std::int64_t>(group.cached.size())};
  count.held = std::ranges::count_if(group.blocks, [](const Block& block) { return block.refs > 0; });
  return count;
}

std::int64_t BlockPool::most_blocks(std::size_t group, std::int64_t length, std::int64_t chunk) const {
  const std::int64_t window = groups_[group].window, all = blocks_for(length);
  return window > 0 ? std::min(all, blocks_for(window - 1 + chunk + kKvBlockSize - 1)) : all;
}

bool BlockPool::could_reserve(const SequenceBlocks& sequence, std::int64_t length, std::int64_t chunk) const {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const nn::BlockTable& table = sequence.tables[group];
    const std::int64_t has = static_cast<std::int64_t>(table.blocks.size()) - table.freed;
    if (most_blocks(group, length, chunk) - has > available(group)) return false;
  }
  return true;
}

void BlockPool::check(std::span<const SequenceBlocks* const> sequences) const {
  std::map<PrefixNode, std::int64_t> uses;
  for (const auto& [number, node] : nodes_) {
    uses[number];
    if (node.parent != kNoNode) ++uses[node.parent];
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (node.blocks[group] == kNoBlock) continue;
      ++uses[number];
      TRIREME_CHECK(groups_[group].blocks[static_cast<std::size_t>(node.blocks[group])].node == number,
                    "prefix node {} has block {}, which does not know it", number, node.blocks[group]);
    }
  }
  for (const SequenceBlocks* sequence : sequences) {
    if (options_.prefix_cache) ++uses[tail(*sequence)];
  }
  for (const auto& [number, count] : uses) {
    TRIREME_CHECK(nodes_.contains(number) && nodes_.at(number).uses == count && count > 0,
                  "prefix node {} is used {} times", number, count);
  }
  for (std::size_t number = 0; number < groups_.size(); ++number) {
    const Group& group = groups_[number];
    std::vector<std::int32_t> refs(group.blocks.size());
    for (const SequenceBlocks* sequence : sequences) {
      for (const nn::BlockId id : sequence->tables[number].blocks) {
        if (id != kNoBlock) ++refs[static_cast<std::size_t>(id)];
      }
    }
    const std::set<nn::BlockId> free(group.free.begin(), group.free.end());
    TRIREME_CHECK(free.size() == group.free.size(), "a block of group {} is free twice", number);
    for (std::size_t i = 0; i < group.blocks.size(); ++i) {
      const Block& block = group.blocks[i];
      const auto id = static_cast<nn::BlockId>(i);
      const bool is_cached = group.cached.contains({block.released, id});
      TRIREME_CHECK(block.refs == refs[i], "block {} of group {} is held {} times, not {}", i, number, refs[i],
                    block.refs);
      TRIREME_CHECK(free.contains(id) + (block.refs > 0) + is_cached == 1,
                    "block {} of group {}: free {}, held {}, cached {}", i, number, free.contains(id), block.refs > 0,
                    is_cached);
      TRIREME_CHECK(block.node == kNoNode ? !is_cached : !free.contains(id), "block {} of group {} is free and found",
                    i, number);
    }
  }
}

}  // namespace trireme::serve
