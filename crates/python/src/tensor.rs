//! A part of an arena with a shape: what NumPy and DLPack consumers see, in the place where it lies.

use crate::arena::SharedArena;
use crate::dlpack;
use octavo_backend::PageLayout;
use octavo_types::KvDtype;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Memory of a KV cache, shared and not copied. It lives as long as anything that looks at it.
///
/// `numpy.asarray` and `from_dlpack` of NumPy, torch and others make arrays of it. NumPy has no bfloat16 and no
/// float8: for these there is DLPack, and `bytes()`.
#[pyclass(frozen, module = "octavo._octavo")]
pub(crate) struct CacheTensor {
    pub(crate) arena: Arc<SharedArena>,
    pub(crate) element: Element,
    /// Bytes from the arena's beginning.
    offset: usize,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    Fp8,
    U8,
}

impl Element {
    fn of(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32,
            KvDtype::F16 => Self::F16,
            KvDtype::Bf16 => Self::Bf16,
            KvDtype::Fp8 => Self::Fp8,
            KvDtype::Int8 => Self::U8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::Fp8 => "float8_e4m3fn",
            Self::U8 => "uint8",
        }
    }

    /// As NumPy's array interface writes it, where NumPy has it.
    fn typestr(self) -> Option<&'static str> {
        match self {
            Self::F32 => Some("<f4"),
            Self::F16 => Some("<f2"),
            Self::U8 => Some("|u1"),
            Self::Bf16 | Self::Fp8 => None,
        }
    }

    pub(crate) fn bytes(self) -> i64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 | Self::U8 => 1,
        }
    }
}

impl CacheTensor {
    /// Every layer: `[layers, blocks, 2, block_size, kv_heads, head_dim]`.
    pub(crate) fn layered(arena: &Arc<SharedArena>) -> Self {
        let PageLayout { layers, kv_heads, page_size, head_dim, dtype } = *arena.layout();
        let element = Element::of(dtype);
        let [layers, heads, slots, dim] = [layers, kv_heads, page_size, head_dim].map(|n| n as i64);
        // A page is [layer][K|V][head][slot][dim], with parameters after the last layer of the quantised precisions.
        let plane = slots * dim;
        let half = heads * plane;
        let page = arena.layout().page_bytes() as i64 / element.bytes();
        Self {
            arena: arena.clone(),
            element,
            offset: 0,
            shape: vec![layers, arena.pages() as i64, 2, slots, heads, dim],
            strides: vec![2 * half, page, half, dim, plane, 1],
        }
    }

    /// Where it begins.
    pub(crate) fn data(&self) -> *mut u8 {
        self.arena.base().wrapping_add(self.offset)
    }
}

#[pymethods]
impl CacheTensor {
    /// The length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// In bytes, as NumPy has them.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.strides.iter().map(|stride| stride * self.element.bytes()))
    }

    /// The name of its precision; uint8 where that is quantised.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.element.name()
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(typestr) = self.element.typestr() else {
            return Err(PyTypeError::new_err(format!(
                "NumPy has no {}: use from_dlpack of a library that has, or bytes()",
                self.element.name()
            )));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("strides", self.strides(py)?)?;
        interface.set_item("data", (self.data() as usize, false))?;
        Ok(interface)
    }

    /// The same memory as unsigned bytes: the last axis is as many times longer as an element has bytes.
    fn bytes(&self) -> Self {
        let size = self.element.bytes();
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        strides.iter_mut().for_each(|stride| *stride *= size);
        if let (Some(length), Some(stride)) = (shape.last_mut(), strides.last_mut()) {
            (*length, *stride) = (*length * size, 1);
        }
        Self { arena: self.arena.clone(), element: Element::U8, offset: self.offset, shape, strides }
    }

    /// The part at `index` of the first axis.
    fn __getitem__(&self, index: i64) -> PyResult<Self> {
        let [first, ..] = self.shape[..] else { return Err(PyTypeError::new_err("it has no axes")) };
        if !(0..first).contains(&index) {
            return Err(pyo3::exceptions::PyIndexError::new_err(format!("{index} of an axis of {first}")));
        }
        let further = index * self.strides[0] * self.element.bytes();
        Ok(Self {
            arena: self.arena.clone(),
            element: self.element,
            offset: self.offset + further as usize,
            shape: self.shape[1..].to_vec(),
            strides: self.strides[1..].to_vec(),
        })
    }

    fn __len__(&self) -> usize {
        self.shape.first().map_or(0, |n| *n as usize)
    }

    fn __repr__(&self) -> String {
        format!("CacheTensor(shape={:?}, dtype={})", self.shape, self.element.name())
    }

    /// DLPack's device: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the CPU has no stream"));
        }
        if dl_device.is_some_and(|device| device != (dlpack::CPU, 0)) {
            return Err(PyBufferError::new_err("it lies in the CPU's memory and is not moved"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("it is shared and not copied: copy what you make of it"));
        }
        dlpack::export(py, self, max_version.is_some_and(|(major, _)| major >= 1))
    }
}
