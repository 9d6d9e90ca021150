// The processor's matrix registers (Intel AMX), where it has them and the system grants their use: products of bytes, exact like those
// of AVX512_VNNI, for up to 16 rows at once.

#pragma once

#if defined(__AVX512VNNI__) && defined(__linux__) && __has_include(<amxint8intrin.h>)
#define RADIXKV_TILES

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vectors.h"

#define RADIXKV_WITH_TILES __attribute__((target("amx-tile,amx-int8")))

namespace radixkv {

constexpr int kTileRows = 16, kTileBytes = 64;

// Whether this process may use them. The system asks for them once per process: their state makes a thread's context larger.
inline bool may_use_tiles() {
  static const bool may = [] {
    constexpr unsigned kTileAndInt8 = 3u << 24;
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTileAndInt8) == kTileAndInt8 &&
           syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return may;
}

// Shapes the registers of this thread for `multiply_digits`: sums of `num_rows` rows, from 1 to 16, over 4 * `num_words` inputs.
RADIXKV_WITH_TILES inline void shape_tiles(int num_rows, int num_words) {
  struct alignas(64) Shapes {
    uint8_t palette = 1, first_row = 0, unused[14]{};
    uint16_t row_bytes[16]{};
    uint8_t num_rows[16]{};
  } shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const bool is_digits = tile == 4 || tile == 5;
    shapes.row_bytes[tile] = uint16_t(is_digits ? 4 * num_words : kTileBytes);
    shapes.num_rows[tile] = uint8_t(tile < 6 ? num_rows : num_words);
  }
  asm volatile("" : : "r"(&shapes) : "memory");  // the compiler knows of the first word alone that it is read
  _tile_loadconfig(&shapes);
}

RADIXKV_WITH_TILES inline void release_tiles() { _tile_release(); }

// Sums of products of signed bytes with bytes, [4][16 rows][16 outputs]: of the rows at `high` with two vectors of outputs, then of those
// at `low`. Rows are `stride` bytes apart. `weights`: [words][2 vectors][16 outputs][4].
RADIXKV_WITH_TILES inline void multiply_digits(const int8_t* high, const int8_t* low, int64_t stride, const uint8_t* weights,
                                               int32_t (*sums)[kTileRows][kLanes]) {
  asm volatile("" ::: "memory");  // weights may just have been written
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, high, stride);
  _tile_loadd(6, weights, 2 * kTileBytes);
  _tile_dpbsud(0, 4, 6);
  _tile_loadd(7, weights + kTileBytes, 2 * kTileBytes);
  _tile_dpbsud(1, 4, 7);
  _tile_loadd(5, low, stride);
  _tile_dpbsud(2, 5, 6);
  _tile_dpbsud(3, 5, 7);
  _tile_stored(0, sums[0], kTileBytes);
  _tile_stored(1, sums[1], kTileBytes);
  _tile_stored(2, sums[2], kTileBytes);
  _tile_stored(3, sums[3], kTileBytes);
}

}  // namespace radixkv
#endif
