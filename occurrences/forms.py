"""What people type about runs and failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms

from jobs.errors import InvalidDefinition
from jobs.forms import JSONTextField
from occurrences.models import FailedOccurrence


class DataForm(forms.Form):
    """Job data of one run; empty text is an empty object."""

    data = JSONTextField(required=False)  # type: ignore[assignment]

    def accepted_by(self, deed: Callable[[dict[str, Any]], object]) -> bool:
        """Do it with the data. False when they are no data or the deed refuses them: the errors then stand beside what
        was typed, so that it can be mended.
        """
        if not self.is_valid():
            return False
        try:
            deed(self.cleaned_data["data"])
        except InvalidDefinition as error:
            for text in error.fields.get("data") or [str(error)]:
                self.add_error("data", text)
            return False
        return True


class ResolveForm(forms.Form):
    """How a failure was dealt with."""

    ACTIONS: ClassVar = [
        (action.value, action.label) for action in (FailedOccurrence.Action.FIXED, FailedOccurrence.Action.IGNORED)
    ]

    action = forms.ChoiceField(label="What was done", choices=ACTIONS)
    note = forms.CharField(
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2, "placeholder": "For whoever looks next"}),
        error_messages={"required": "Say what was done, for whoever looks next."},
    )


def error_text(form: forms.Form) -> str:
    """All errors of a form in one line, for a message after a redirect."""
    return " ".join(f"{name}: {text}" for name, texts in form.errors.items() for text in texts)
