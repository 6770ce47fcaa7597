// Threads that run a kernel together, the caller as one of them; started once, never ended.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

using Kernel = void (*)(void *call);

class Crew {
    // A call of attention runs ten kernels, tens of microseconds apart: a worker that looks out for
    // the next one that long takes it sooner than one that has to be woken.
    static constexpr auto PATIENCE = std::chrono::microseconds(100);

public:
    // Run `kernel(call)` in `threads` threads; each takes pieces of the work until none is left.
    void run(Kernel kernel, void *call, int64_t threads) {
        const std::lock_guard<std::mutex> alone(one_caller);
        start(threads - 1);
        const int64_t helpers = threads - 1 < workers ? threads - 1 : workers;
        if (helpers > 0) {
            const std::lock_guard<std::mutex> change(lock);
            own_kernel = kernel, own_call = call;
            wanted = helpers, unfinished.store(helpers);
            round.fetch_add(1);
        }
        if (helpers > 0) begin.notify_all();
        kernel(call);
        wait_until([&] { return unfinished.load() == 0; });
        while (unfinished.load()) std::this_thread::yield();
    }

private:
    std::mutex one_caller, lock;
    std::condition_variable begin;
    std::atomic<int64_t> round{0}, unfinished{0};
    int64_t workers = 0, wanted = 0;
    Kernel own_kernel = nullptr;
    void *own_call = nullptr;

    // Start workers until there are so many; with fewer the others do their work.
    void start(int64_t count) {
        while (workers < count) {
            try {
                std::thread(&Crew::work, this, workers, round.load()).detach();
            } catch (const std::system_error &) {
                return;
            }
            workers++;
        }
    }

    void work(int64_t number, int64_t seen) {
        for (;;) {
            wait_until([&] { return round.load() != seen; });
            std::unique_lock<std::mutex> change(lock);
            begin.wait(change, [&] { return round.load() != seen; });
            seen = round.load();
            const bool takes_part = number < wanted;
            const Kernel kernel = own_kernel;
            void *call = own_call;
            change.unlock();
            if (!takes_part) continue;
            kernel(call);
            unfinished.fetch_sub(1);
        }
    }

    template <typename Condition>
    static void wait_until(Condition is_so) {
        const auto end = std::chrono::steady_clock::now() + PATIENCE;
        while (!is_so() && std::chrono::steady_clock::now() < end) pause();
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        for (int i = 0; i < 8; i++) __builtin_ia32_pause();
#else
        std::this_thread::yield();
#endif
    }
};

inline int64_t this_process() {
#if defined(__unix__) || defined(__APPLE__)
    return getpid();
#else
    return 0;
#endif
}

// The crew of this process: threads do not survive a fork, so a child has its own.
inline Crew &own_crew() {
    static std::atomic<Crew *> crew{nullptr};
    static std::atomic<int64_t> owner{-1};
    static std::mutex *making = new std::mutex;
    if (owner.load() != this_process()) {
        if (owner.load() != -1) making = new std::mutex;  // perhaps held when the process forked
        const std::lock_guard<std::mutex> alone(*making);
        if (owner.load() != this_process()) {
            crew.store(new Crew);
            owner.store(this_process());
        }
    }
    return *crew.load();
}
