#include "reduce.inl"

template int rowwise::launch_reduce<rowwise::u8>(const rw_reduce_params&, void*, bool);
