#include "reduce.inl"

template int rowwise::launch_reduce<rowwise::i16>(const rw_reduce_params&, void*, bool);
