// launch_reduce, instantiated by reduce_<dtype>.cu: which body a reduction is, and what its values
// count as.
#include "../ops/families.cuh"
#include "../ops/reduce.cuh"

namespace rowwise {
namespace {

// Bits as a value of a type as wide.
template <class To, class From>
To from_bits(From bits) {
    static_assert(sizeof(To) <= sizeof(From), "the low bits are the value");
    To value;
    __builtin_memcpy(&value, &bits, sizeof(To));
    return value;
}

// Elements in terms of bits: the sign of a float, or the top bit of an integer.
template <class T>
constexpr u64 kTopBit = 1ull << (8 * sizeof(T) - 1);
// -inf and +inf.
template <class T>
constexpr u64 kInfinity = 0;
template <>
constexpr u64 kInfinity<f16> = 0x7c00;
template <>
constexpr u64 kInfinity<bf16> = 0x7f80;
template <>
constexpr u64 kInfinity<float> = 0x7f800000;
template <>
constexpr u64 kInfinity<double> = 0x7ff0000000000000;

// The map that turns a reduction into a sum, or a maximum, of T's that stand for `dtype`.
template <class T, class A>
BitMap<A> map_of(rw_reduction reduction, rw_dtype dtype) {
    BitMap<A> map;
    map.keep = static_cast<decltype(map.keep)>(~0ull);
    map.flip = 0;
    const u64 sign = 1ull << (8 * sizeof(A) - 1);
    switch (reduction) {
        case RW_NORM_L1:
        case RW_ABS_MAX:
            map.keep = static_cast<decltype(map.keep)>(~sign);
            break;
        case RW_MIN:
        case RW_ARGMIN:
            map.flip = static_cast<decltype(map.flip)>(kIsInteger<T> ? ~0ull : sign);
            break;
        case RW_SUM:
        case RW_PROD:
            if (dtype == RW_U32) {
                // Widened as if it were signed.
                map.keep = static_cast<decltype(map.keep)>(0xffffffffull);
            }
            return map;
        default:
            break;
    }
    if (dtype == RW_U32) {
        map.flip = static_cast<decltype(map.flip)>(static_cast<u64>(map.flip) ^ kTopBit<T>);
    }
    return map;
}

// The element that the map makes the lowest value of: of magnitudes, 0.
template <class T, class A>
T lowest_under(const BitMap<A>& map, rw_reduction reduction) {
    if (reduction == RW_ABS_MAX) {
        return T{};
    }
    const bool is_reversed = reduction == RW_MIN || reduction == RW_ARGMIN;
    if constexpr (kIsInteger<T>) {
        // Of an unsigned type of 8 bits, which is handled as a wider signed one, the order is its own.
        const u64 lowest = sizeof(T) == 1 ? 0 : kTopBit<T>;
        const u64 bits = sizeof(T) == 1 && is_reversed ? 0xff : lowest ^ static_cast<u64>(map.flip);
        return from_bits<T>(bits);
    } else {
        return from_bits<T>(is_reversed ? kInfinity<T> : kInfinity<T> | kTopBit<T>);
    }
}

}  // namespace

template <class T>
int launch_reduce(const rw_reduce_params& params, void* stream, bool dry_run) {
    using A = accum_t<T>;
    const rw_problem& p = params.problem;
    const rw_reduction reduction = params.reduction;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<typename decltype(body)::Output*>(p.results[0]);
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    const auto map = map_of<T, A>(reduction, p.dtype);
    switch (reduction) {
        case RW_SUM:
        case RW_MEAN:
        case RW_NORM_L1: {
            SumBody<T> body{};
            body.pad = from_bits<T>(kIsInteger<T> ? 0 : kTopBit<T>);
            body.map = map_of<T, total_t<T>>(reduction, p.dtype);
            body.is_mean = reduction == RW_MEAN;
            return run(body);
        }
        case RW_PROD: {
            ProdBody<T> body{};
            body.map = map_of<T, total_t<T>>(reduction, p.dtype);
            return run(body);
        }
        case RW_MAX:
        case RW_MIN:
        case RW_ABS_MAX: {
            ExtremumBody<T> body{};
            body.map = map;
            body.pad = lowest_under<T>(map, reduction);
            return run(body);
        }
        case RW_ARGMAX:
        case RW_ARGMIN: {
            ArgExtremumBody<T> body{};
            body.map = map;
            body.pad = lowest_under<T>(map, reduction);
            return run(body);
        }
        case RW_MIN_MAX: {
            MinMaxBody<T> body{};
            body.map = map;
            body.rows = p.rows;
            return run(body);
        }
        case RW_ANY:
        case RW_ALL:
            if constexpr (kIsInteger<T>) {
                const bool is_float = p.dtype <= RW_F64;
                TruthBody<T> body{};
                body.keep = static_cast<A>(is_float ? kTopBit<T> - 1 : ~0ull);
                body.is_all = reduction == RW_ALL;
                return run(body);
            }
            break;
        default:
            break;
    }
    if constexpr (!kIsInteger<T>) {
        switch (reduction) {
            case RW_NORM_L2:
            case RW_MEAN_OF_SQUARES: {
                SquaresBody<T> body{};
                body.is_mean = reduction == RW_MEAN_OF_SQUARES;
                return run(body);
            }
            case RW_VAR:
            case RW_STD: {
                VarianceBody<T> body{};
                body.correction = params.correction;
                body.is_std = reduction == RW_STD;
                return run(body);
            }
            case RW_LOGSUMEXP:
                return run(LogSumExpBody<T>{});
            default:
                break;
        }
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
