// Tasks dealt to the threads in even shares. Who has done its own takes the last of another's, so
// a thread whose core is taken away for a while holds the others up by one task at most.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>
#include <vector>

namespace triptych {

class Shares {
 public:
  Shares(int64_t tasks, int64_t threads) : shares_(threads) {
    for (int64_t i = 0; i < threads; ++i)
      shares_[i].range = pair(tasks * i / threads, tasks * (i + 1) / threads);
  }

  int64_t size() const { return int64_t(shares_.size()); }

  // The next task of share `own`, else the last one of another share, else -1.
  int64_t take(int64_t own) {
    for (int64_t i = 0; i < size(); ++i) {
      const int64_t task = take_from((own + i) % size(), i == 0);
      if (task >= 0) return task;
    }
    return -1;
  }

 private:
  struct alignas(64) Share {  // a line of its own
    std::atomic<uint64_t> range;
  };

  static uint64_t pair(uint64_t begin, uint64_t end) { return begin << 32 | end; }

  int64_t take_from(int64_t index, bool from_front) {
    std::atomic<uint64_t>& range = shares_[index].range;
    uint64_t seen = range.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = seen >> 32, end = seen & 0xffffffffu;
      if (begin >= end) return -1;
      const uint64_t rest = from_front ? pair(begin + 1, end) : pair(begin, end - 1);
      if (range.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return int64_t(from_front ? begin : end - 1);
    }
  }

  std::vector<Share> shares_;
};

// Calls body(take) on each thread, where take() gives one task of `tasks` after another, then -1.
// Every task is given once.
template <typename Body>
void share_tasks(int64_t tasks, const Body& body) {
  Shares shares(tasks, std::max<int64_t>(1, std::min<int64_t>(tasks, at::get_num_threads())));
  at::parallel_for(0, shares.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t own = begin; own < end; ++own) body([&] { return shares.take(own); });
  });
}

}  // namespace triptych
