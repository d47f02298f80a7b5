#pragma once
// Compile-time tests of the tile types: a product of tiles that do not fit together does not compile. Included by one
// source file.

#include "kernels/cuda/device/wgmma_fp8.cuh"

namespace ring::cuda::tile_checks {

template <class C, class A, class B>
concept HasABt = requires(C& c, A a, B b) {
  mm_ABt(c, a, b);
};
template <class C, class A, class B>
concept HasAB = requires(C& c, A a, B b) {
  mma_AB(c, a, b);
};
template <class C, class A, class B>
concept HasAtB = requires(C& c, A a, B b) {
  mm_AtB(c, a, b);
};

template <int columns>
using Sums = RegTile<float, 64, columns>;
template <int columns>
using OperandA = RegTile<Bf16, 64, columns>;
template <int rows, int columns, class T = Bf16, Swizzle swizzle = Swizzle::b128>
using Tile = SmemView<T, rows, columns, swizzle>;

// c [64,128] = a b^T, with a [64,64] and b [128,64].
static_assert(HasABt<Sums<128>, Tile<64, 64>, Tile<128, 64>>);
static_assert(HasABt<Sums<128>, OperandA<64>, Tile<128, 64>>);
static_assert(HasABt<Sums<128>, Tile<64, 128, E4m3>, Tile<128, 128, E4m3>>);
static_assert(!HasABt<Sums<128>, Tile<64, 128>, Tile<128, 64>>, "a has other columns than b");
static_assert(!HasABt<Sums<128>, Tile<64, 64>, Tile<64, 128>>, "b has its rows and columns swapped");
static_assert(!HasABt<Sums<64>, Tile<64, 64>, Tile<128, 64>>, "c has fewer columns than b has rows");
static_assert(!HasABt<Sums<128>, Tile<128, 64>, Tile<128, 64>>, "a has the rows of two warpgroups");
static_assert(!HasABt<Sums<128>, Tile<64, 128, E4m3>, Tile<128, 128>>, "a and b have different elements");
static_assert(!HasABt<Sums<128>, OperandA<128>, Tile<128, 128, E4m3>>, "a and b have different elements");
static_assert(!HasABt<OperandA<128>, Tile<64, 64>, Tile<128, 64>>, "c is not f32");
static_assert(!HasABt<Sums<128>, Tile<64, 64>, Tile<128, 64, Bf16, Swizzle::none>>, "b has no swizzle");
static_assert(!HasABt<Sums<128>, Tile<64, 64>, std::uint32_t>, "b is an address");

// c [64,128] += a b, with a [64,64] and b [64,128].
static_assert(HasAB<Sums<128>, OperandA<64>, Tile<64, 128>>);
static_assert(!HasAB<Sums<128>, OperandA<64>, Tile<128, 64>>, "b is transposed");
static_assert(!HasAB<Sums<128>, OperandA<128>, Tile<64, 128>>, "a has other columns than b has rows");
static_assert(!HasAB<Sums<128>, Sums<64>, Tile<64, 128>>, "a is f32");

// c [64,64] = a^T b, with a [128,64] and b [128,64].
static_assert(HasAtB<Sums<64>, Tile<128, 64>, Tile<128, 64>>);
static_assert(!HasAtB<Sums<64>, Tile<64, 128>, Tile<128, 64>>, "a is transposed");
static_assert(!HasAtB<Sums<64>, Tile<128, 64, E4m3>, Tile<128, 64, E4m3>>, "e4m3 tiles must be K-major");

// An instruction takes the major-ness and the elements of its operands from their descriptors.
template <class A, class B>
concept HasWgmma = requires(Sums<128>& c, A a, B b) {
  wgmma_ss(c, a, b, 1);
};
using KMajor = MatrixDescriptor<Bf16, Major::k>;
static_assert(HasWgmma<KMajor, KMajor>);
static_assert(HasWgmma<MatrixDescriptor<E4m3, Major::k>, MatrixDescriptor<E4m3, Major::k>>);
static_assert(!HasWgmma<KMajor, MatrixDescriptor<Bf16, Major::mn>>, "128 columns are K-major only");
static_assert(!HasWgmma<KMajor, MatrixDescriptor<E4m3, Major::k>>);
static_assert(!HasWgmma<KMajor, std::uint64_t>);

}  // namespace ring::cuda::tile_checks
