"""Centring and partial whitening: directions in which vectors differ most count for less."""

from dataclasses import dataclass, field

import numpy as np

from demur_proto.arrays import Values, Vector
from demur_proto.models.products import ROWS, sum_of_products

CENTRE_STEP = 2.0**-20  #: of the grid on which a centre is kept
MATRIX_STEP = 2.0**-14  #: of that of a matrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Whitening:
    """x → (x − m) K, fitted to some vectors that are public."""

    centre: Vector = field(repr=False)  #: m [k]; cannot be written
    matrix: Values = field(repr=False)  #: K [k, k], symmetric; cannot be written

    def of(self, rows: Values) -> Values:
        """Whitened rows [n, k]; each is a product of its own, the same in any company."""
        whitened: Values = ((rows - self.centre)[:, None, :] @ self.matrix)[:, 0]
        return whitened


def fit_whitening(rows: Values, *, power: float, floor: float) -> Whitening:
    """Fit a centre and a matrix to vectors.

        m = mean,  covariance = V diag(λ) Vᵀ,  K = V diag((λ / λ_max + floor)^(−power / 2)) Vᵀ

    K is a function of the covariance alone: it does not depend on the signs of eigenvectors, nor on which of
    them are chosen where eigenvalues are equal. What linear algebra libraries round differently goes when m
    is rounded to multiples of 2^−20 and K to those of 2^−14.

    Args:
        rows: [n, k], at least 2, which must be public; not all alike.
        power: 0 for no whitening, 1 for variances that are equal but for the floor.
        floor: added to every eigenvalue's share of the largest; > 0.

    Two independent coordinates with variances 4 and 1 are divided by the roots of 1 and ¼:

    >>> four = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    >>> fit_whitening(four, power=1.0, floor=1e-9).matrix.round(3)
    array([[1., 0.],
           [0., 2.]])
    """
    centre = np.rint(rows.mean(axis=0) / CENTRE_STEP) * CENTRE_STEP
    values, vectors = np.linalg.eigh(_covariance(rows))
    shares = np.maximum(values, 0.0) / values[-1]
    roots = vectors * (shares + floor) ** (-power / 4)
    matrix = np.rint(sum_of_products(roots.T, roots.T) / MATRIX_STEP) * MATRIX_STEP + 0.0
    centre.flags.writeable = matrix.flags.writeable = False
    return Whitening(centre=centre, matrix=matrix)


def _covariance(rows: Values) -> Values:
    """The covariance [k, k] of rows [n, k], of which some at a time are centred: all take much memory."""
    mean = rows.mean(axis=0)
    total: Values = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), ROWS):
        apart = rows[start : start + ROWS] - mean
        total += sum_of_products(apart, apart)
    total /= len(rows) - 1
    return total
